from tests.support.engine_fixtures import (
    docker_rig,
    empty_image_id,
    engine_url,
    make_docker_rig,
    stand_in_dir,
)
from tests.support.private_engine import private_engines

__all__ = ["docker_rig", "empty_image_id", "engine_url", "make_docker_rig", "private_engines", "stand_in_dir"]
