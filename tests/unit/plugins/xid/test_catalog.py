"""The compiled catalogue: it is up to date, whole, and only says words that the rest understands."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bandog_plugins.xid.catalog import Catalog, Version
from bandog_plugins.xid.nvlink import decode_words
from bandog_plugins.xid.verdict import of_xid

ROOT = Path(__file__).parents[4]
DATA = ROOT / "plugins" / "bandog_plugins" / "data"


@pytest.fixture(scope="module")
def source() -> dict[str, Any]:
    """The catalogue as people edit it."""
    loaded: dict[str, Any] = yaml.safe_load((DATA / "xid_catalog.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The catalogue as the detector uses it."""
    return Catalog()


def test_compiled_files_are_up_to_date(source: dict[str, Any]) -> None:
    """After a change of the YAML, packaging/compile-xid-catalog has to run."""
    script = runpy.run_path(str(ROOT / "packaging" / "compile-xid-catalog"), run_name="compile")
    for name, made in (("xid_tables", "compile_tables"), ("xid_words", "compile_words")):
        assert (DATA / f"{name}.json").read_text() == script["render"](script[made](source))


def test_catalogue_is_whole(source: dict[str, Any], catalog: Catalog) -> None:
    """Every code and row of the source is found again."""
    assert (len(source["xids"]), len(source["sxids"]), len(source["nvlink5_decode"])) == (179, 400, 95)
    for one in source["xids"]:
        entry = catalog.xid(one["code"])
        assert entry is not None
        assert (entry.action, entry.severity, entry.usable) == (one["action"], one["severity"], one["usable"])
    for one in source["sxids"]:
        entry = catalog.sxid(one["code"])
        assert entry is not None
        assert (entry.action, entry.driver) == (one["action"], one["driver"])
    assert sum(len(catalog.nvlink5(code)) for code in range(144, 151)) == 95
    assert catalog.xid(178) is None
    assert catalog.recovery[2] == "reboot"


def test_every_code_ends_in_a_final_word(source: dict[str, Any], catalog: Catalog) -> None:
    """No finding says that another line or the message decides: a line by itself gives a word to act on."""
    final = set(source["vocabulary"]["action"]) - {"follow_primary", "decode_message"}
    for one in source["xids"]:
        assert of_xid(catalog, one["code"], "", None).action in final


def test_each_nvlink_row_decodes_to_its_action(source: dict[str, Any], catalog: Catalog) -> None:
    """Word and status of a row of NVIDIA's table give that row's action, under the branch of its layout."""
    for row in source["nvlink5_decode"]:
        for layout, branch in (("v1", "570.86.15"), ("v2", "580.65.06")):
            if layout not in row:
                continue
            status = row["status"][0] if row["status"] else 0
            message = f"UNIT  Fatal   XC0 i0 Link 01 (0x{row[layout][1]:08x} 0x{status:08x} 0x0 0x0 0x0 0x0)"
            decoded = decode_words(catalog, row["xid"], message, Version.parse(branch))
            unclear = decode_words(catalog, row["xid"], message, None)
            assert decoded.action == unclear.action == row["action"], row


def test_word_is_read_by_the_layout_of_the_driver(catalog: Catalog) -> None:
    """Unit bits moved in R575: a word of one layout means nothing in the other, unless the unit's name tells."""
    known = next(row for row in catalog.nvlink5(144) if row.v1 is not None and row.v2 is not None and row.v1 != row.v2)
    assert known.v1 is not None and known.status is not None
    message = f"UNIT Nonfatal XC0 i0 Link 01 (0x{known.v1[1]:08x} 0x{known.status[0]:08x})"
    old = decode_words(catalog, 144, message, Version(570, 86, 15))
    new = decode_words(catalog, 144, message, Version(580, 65, 6))
    assert (old.action, new.action) == (known.action, "notify")


@pytest.mark.parametrize(
    ("text", "version"),
    [("535.129.03\n", (535, 129, 3)), ("570.86", (570, 86, 0)), ("", None), ("garbage", None), ("57.1", None)],
)
def test_version_is_parsed(text: str, version: tuple[int, int, int] | None) -> None:
    """Versions have two or three numbers; anything else is none."""
    assert Version.parse(text) == version


@pytest.mark.parametrize(
    ("code", "version", "today"),
    [
        (139, "535.129.03", 141),
        (139, "550.40.07", 139),
        (144, "550.90.07", 151),
        (144, "550.163.01", 151),
        (144, "560.28.03", 144),
    ],
)
def test_renumbered_xid(catalog: Catalog, code: int, version: str, today: int) -> None:
    """Within the versions in which a number meant something else, the entry with that meaning counts."""
    entry = catalog.xid(code, Version.parse(version))
    assert entry is not None
    assert entry.code == today


def test_renumbered_sxid(catalog: Catalog) -> None:
    """28001 was a tracking error up to R545 and is an optical module's temperature today."""
    old, new = catalog.sxid(28001, Version(535, 129, 3)), catalog.sxid(28001, Version(570, 86, 15))
    assert old is not None and new is not None
    assert (old.code, new.code) == (29001, 28001)
    assert catalog.renumbered(28001, switch=True) and not catalog.renumbered(79)
