"""Where files come from, and how one layer lies over another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bandog.config import layers
from bandog.config.layers import lay_over, merge, read_folder, read_source
from bandog.config.yaml12 import Document, read_document


def document(name: str, text: str) -> Document:
    found, problems = read_document(text.encode(), name)
    assert problems == []
    return found


def test_maps_merge_the_later_wins_and_lists_are_replaced() -> None:
    merged = merge(
        [
            document("bandog.yaml", "mode: observe\nbudgets: {restart: 1 per 1h, host: 2 per 1h}\nlist: [1, 2, 3]\n"),
            document("conf.d/1.yaml", "mode: enforce\nbudgets:\n  host: 9 per 1h\nlist: [4]\n"),
        ]
    )
    assert merged.value == {
        "mode": "enforce",
        "budgets": {"restart": "1 per 1h", "host": "9 per 1h"},
        "list": [4],
    }


def test_every_merged_value_keeps_the_place_it_came_from() -> None:
    merged = merge([document("a.yaml", "m: {x: 1, y: 2}\nl: [1, 2]\n"), document("b.yaml", "m: {y: 3}\nl: [7]\n")])
    assert merged.where(("m", "x")) == ("a.yaml", (1, 8))
    assert merged.where(("m", "y")) == ("b.yaml", (1, 8))
    assert merged.where(("l", 0)) == ("b.yaml", (2, 5))
    assert merged.where(("l", 1)) == ("b.yaml", (2, 4))  # what was there is gone; the list stands here


def test_a_word_replaces_a_map_and_a_map_a_word() -> None:
    first, second = document("a", "plugins: {x: {a: 1}, y: off}\n"), document("b", "plugins: {x: off, y: {b: 2}}\n")
    assert merge([first, second]).value == {"plugins": {"x": "off", "y": {"b": 2}}}


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name.replace('_', '-')}.yaml").write_text(text)
    return folder


def test_the_sites_file_replaces_the_shipped_one_of_its_name_and_all_are_read_by_name(tmp_path: Path) -> None:
    shipped, _ = read_folder(write(tmp_path / "a", _10="s10", _30="s30"), "a", "shipped")
    site, _ = read_folder(write(tmp_path / "b", _20="t20", _30="t30"), "b")
    files, _ = lay_over(shipped, site)
    assert [(one.path.name, one.layer, one.data) for one in files] == [
        ("-10.yaml", "shipped", b"s10"),
        ("-20.yaml", "site", b"t20"),
        ("-30.yaml", "site", b"t30"),
    ]


def test_a_copy_that_says_what_it_replaces_is_quiet_until_the_shipped_file_changes(tmp_path: Path) -> None:
    shipped, _ = read_folder(write(tmp_path / "a", x="policy: x\n"), "a", "shipped")
    copy = f"# replaces: {shipped[0].digest}\npolicy: mine\n"
    site, _ = read_folder(write(tmp_path / "b", x=copy), "b")
    assert lay_over(shipped, site)[1] == []
    changed, _ = read_folder(write(tmp_path / "a", x="policy: x\nquiet: 1h\n"), "a", "shipped")
    (problem,) = lay_over(changed, site)[1]
    assert problem.is_warning and changed[0].digest in problem.message


@pytest.mark.parametrize("text", ["", "# not here\n", "\n  # indented\n\n"])
def test_an_empty_file_silences_without_a_word(tmp_path: Path, text: str) -> None:
    shipped, _ = read_folder(write(tmp_path / "a", x="policy: x\n"), "a", "shipped")
    site, _ = read_folder(write(tmp_path / "b", x=text), "b")
    files, problems = lay_over(shipped, site)
    assert problems == [] and [one.layer for one in files] == ["site"]


def test_a_silence_that_names_another_version_is_told_of_the_change(tmp_path: Path) -> None:
    shipped, _ = read_folder(write(tmp_path / "a", x="policy: x\n"), "a", "shipped")
    site, _ = read_folder(write(tmp_path / "b", x="# replaces: 000000000000\n"), "b")
    assert [one.code for one in lay_over(shipped, site)[1]] == ["hides-shipped"]


def test_hidden_files_and_package_leftovers_are_no_configuration(tmp_path: Path) -> None:
    for name in (".x.yaml", "x.yaml.dpkg-old", "README", "x.yaml~"):
        (tmp_path / name).write_text("policy: x\n")
    assert read_folder(tmp_path, "policies.d") == ([], [])


def test_a_pipe_or_a_device_does_not_block_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    _, problems = read_folder(tmp_path, "policies.d")
    assert [one.code for one in problems] == ["not-a-file", "not-a-file"]


def test_a_name_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml")).write_text("policy: x\n")
    sources, _ = read_folder(tmp_path, "policies.d")
    assert [one.shown for one in sources] == ["policies.d/\\xff.yaml"]


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(1 << 33)
    source, _ = read_source(big, "big.yaml")
    assert source is not None and len(source.data) == (1 << 20) + 1


def test_shipped_policies_are_the_options_else_the_checkouts(tmp_path: Path) -> None:
    assert layers.shipped_policies_dir(tmp_path) == tmp_path
    assert layers.shipped_policies_dir() == Path(__file__).parents[3] / "policies"
