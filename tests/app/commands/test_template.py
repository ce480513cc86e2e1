"""An app of the installed package, in a folder of one's own.

That it runs is shown in tests/wiring/test_ray.py.
"""

import tomllib

import pytest

from vfl_flower.app.commands.template import write_app


def test_a_folder_is_not_written_twice(tmp_path):
    write_app(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert tomllib.loads(before)["project"]["name"] == "vfl-flower-app"
    with pytest.raises(ValueError, match="no pyproject"):
        write_app(tmp_path / "app")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before
