"""Programs and images in files: links, pipes and devices are neither replaced nor read for ever."""

import os
import stat

import pytest

import hal
from hal._base import whole_files
from hal._programs.program import Program
from hal._programs.program_image import ProgramImage
from hal.errors import InvalidArgumentError


@pytest.fixture
def program():
    return Program([ProgramImage("none", "none", b"image", None, "", {})], ["kernel"], {})


def test_a_link_stays_and_what_it_leads_to_is_written(program, tmp_path):
    real, link, dangling = tmp_path / "real", tmp_path / "link", tmp_path / "dangling"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to("real")
    dangling.symlink_to("new")
    for path in (link, dangling):
        program.save(path)
        assert path.is_symlink()
        assert Program.open(path).entry_points == ("kernel",)
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "new", "real"]


@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o002, 0o664), (0o077, 0o600)])
def test_a_new_file_has_the_mode_that_the_umask_lets(program, tmp_path, mask, mode):
    """Others could read what the user keeps for himself."""
    old = os.umask(mask)
    try:
        program.save(tmp_path / "mine.hal")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "mine.hal").stat().st_mode) == mode


def test_a_pipe_is_written_to_if_somebody_reads(program, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match=f"{path}"):
        program.save(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        program.save(path)
        assert os.read(reader, 1 << 16) == program.to_bytes()
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_device_is_written_to(program, tmp_path):
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.open("wb").close()
    except OSError:  # only root makes one, and not on every file system
        path = "/dev/null"
    program.save(path)
    assert stat.S_ISCHR(os.lstat(path).st_mode)


def test_what_cannot_be_written_is_named(program, tmp_path):
    for path in (tmp_path / "missing" / "mine.hal", tmp_path):
        with pytest.raises(OSError, match=str(path)):
            program.save(path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "pipe"])
def test_what_may_never_end_is_not_read(device, tmp_path, path):
    if path == "pipe":
        path = str(tmp_path / "pipe")
        os.mkfifo(path)
    for read in (device.load, hal.Program.open):
        with pytest.raises(InvalidArgumentError, match=f"'{path}' is a device or a pipe"):
            read(path)


def test_no_more_is_read_than_an_image_has(device, tmp_path, monkeypatch):
    monkeypatch.setattr(whole_files, "MOST_BYTES", 1000)
    path = tmp_path / "image"
    path.write_bytes(bytes(1000))
    assert whole_files.read_whole(path, "load") == bytes(1000)
    path.write_bytes(bytes(1001))
    with pytest.raises(InvalidArgumentError, match=r"load: .*image' has more than 1,000 bytes"):
        device.load(path)


def test_a_long_path_is_named_to_its_end(device, tmp_path):
    folder = tmp_path.joinpath(*["a folder of some length"] * 8)
    with pytest.raises(FileNotFoundError, match=r"missing\.bin'"):
        device.load(folder / "missing.bin")
