from tests.support.engine_fixtures import empty_image_id, engine_url, make_docker_rig, stand_in_dir

__all__ = ["empty_image_id", "engine_url", "make_docker_rig", "stand_in_dir"]
