"""`get_or_create`: one sandbox under a name, however many ask for it, and only for the same parameters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import AlreadyExists, NotFound
from sandkeeper.core.ids import RequestId
from sandkeeper.core.named import GetOrCreate
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.verbs import fingerprint_of
from sandkeeper.owner.named_creates import NamedCreates
from tests.unit.owner.town import Town, open_town


class Callers:
    """Clients of one town that ask by name."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self._number = 0
        self._named = NamedCreates(
            policy=Policy(),
            create=lambda request: town.placement.create(request, fingerprint=fingerprint_of(request)),
            catalogue=town.catalogue,
            survey=town.survey,
            owners=town,  # type: ignore[arg-type]
            ports=town.ports,
        )

    async def ask(self, name: str = "dev", *, request_id: str | None = None, **wishes: Any) -> Any:
        self._number += 1
        made = request_id or f"ask-{self._number}"
        return await self._named.get_or_create(GetOrCreate(request_id=RequestId(made), name=name, **wishes))

    async def change(self, verb: str, sandbox_id: str, **params: Any) -> Any:
        self._number += 1
        house = self.town.houses[next(iter(self.town.houses))]
        return await house.call(verb, sandbox_id=sandbox_id, request_id=f"c-{self._number}", **params)


@asynccontextmanager
async def open_callers(folder: Path) -> AsyncIterator[Callers]:
    async with open_town(folder) as town:
        yield Callers(town)


async def test_the_first_creates_and_the_next_finds(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask(env={"A": "1"})
        second = await callers.ask(env={"A": "1"}, client_id="other")
        assert (first["is_new"], second["is_new"]) == (True, False)
        assert first["sandbox"]["id"] == second["sandbox"]["id"]
        assert callers.town.calls.count("adopt") == 1


async def test_many_at_once_get_one(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        answers = await asyncio.gather(*(callers.ask() for _ in range(6)))
        assert len({answer["sandbox"]["id"] for answer in answers}) == 1
        assert [answer["is_new"] for answer in answers].count(True) == 1


async def test_a_repeat_of_the_request_gets_its_answer(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask(request_id="same")
        assert await callers.ask(request_id="same") == first
        found = await callers.ask(request_id="finder")
        await callers.change("pause", found["sandbox"]["id"])
        again = await callers.ask(request_id="finder")
        assert (again["is_new"], again["sandbox"]["id"]) == (False, first["sandbox"]["id"])


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"env": {"A": "secret"}}, "env"),
        ({"size": NAMED_SIZES["lite"]}, "size"),
        ({"image": "slim"}, "image"),
        ({"detached": False}, "detached"),
        ({"lifetime_s": 60.0}, "lifetime_s"),
        ({"labels": {"a": "b"}}, "labels"),
    ],
)
async def test_other_parameters_are_refused_with_the_field(
    tmp_path: Path, wishes: dict[str, Any], field: str
) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask()
        with pytest.raises(AlreadyExists) as refusal:
            await callers.ask(**wishes)
        assert (refusal.value.code, refusal.value.details["field"]) == ("name_taken", field)
        assert refusal.value.sandbox_id == first["sandbox"]["id"]
        assert "secret" not in str(refusal.value.to_wire())


async def test_defaults_spelled_out_are_the_same_and_a_resize_does_not_count(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask()
        size = NAMED_SIZES["lite"].model_dump(mode="json")
        await callers.change("resize", first["sandbox"]["id"], size=size)
        again = await callers.ask(image="base", size=NAMED_SIZES["basic"])
        assert again["sandbox"]["id"] == first["sandbox"]["id"]
        assert again["sandbox"]["size"]["name"] == "lite"


@pytest.mark.parametrize("verb", ["stop", "pause"])
async def test_what_rests_is_started(tmp_path: Path, verb: str) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask()
        await callers.change(verb, first["sandbox"]["id"], **({"keep": "files"} if verb == "stop" else {}))
        again = await callers.ask()
        assert (again["sandbox"]["id"], again["sandbox"]["phase"]) == (first["sandbox"]["id"], "running")


async def test_a_destroyed_one_is_replaced_at_once(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask()
        await callers.town.destroy(first["sandbox"]["id"])
        second = await callers.ask(env={"B": "2"})
        assert second["is_new"]
        assert second["sandbox"]["id"] != first["sandbox"]["id"]


async def test_one_that_goes_away_between_the_look_and_the_start_is_replaced(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        first = await callers.ask()
        callers.town.failures["start"] = [NotFound("gone", code="sandbox_destroyed")]
        await callers.town.destroy(first["sandbox"]["id"])
        assert (await callers.ask())["is_new"]


async def test_a_plain_create_under_the_name_counts_too(tmp_path: Path) -> None:
    async with open_callers(tmp_path) as callers:
        view = await callers.town.create(name="dev")
        assert (await callers.ask())["sandbox"]["id"] == view["id"]
