"""`fastcar run` without a board: what is refused, and how."""

import pytest

from fastcar_hw.config import ConfigError
from fastcar_sw.cli.common import UsageError
from fastcar_sw.cli.run import run


def test_an_unknown_board_lists_the_others(tmp_path):
    with pytest.raises(ConfigError, match="'nothing'"):
        run("nothing", "port", tmp_path / "p.npy")


def test_something_must_run(tmp_path, monkeypatch):
    monkeypatch.setattr("fastcar_sw.cli.run.board", lambda name: None)
    with pytest.raises(UsageError, match="--image or --model"):
        run("any", "port", tmp_path / "p.npy", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
