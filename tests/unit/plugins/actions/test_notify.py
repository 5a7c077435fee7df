"""`notify` hands its words to the sender and is done."""

from __future__ import annotations

import pytest
from action_bench import Bench
from pydantic import ValidationError

from bandog import ResultState
from bandog_plugins.actions.notify import Notify, NotifyWith


def test_a_page_goes_to_whom_it_names(bench: Bench) -> None:
    request = bench.request("notify", with_={"to": ["oncall", "lab"], "urgent": True, "text": "come"})
    result = Notify().run(request, bench)
    assert result.state is ResultState.DONE
    assert result.why == "paged oncall, lab"
    [told] = bench.told
    assert (told.to, told.urgent, told.text) == (("oncall", "lab"), True, "come")


def test_one_name_needs_no_list(bench: Bench) -> None:
    Notify().run(bench.request("notify", with_={"to": "oncall"}), bench)
    assert bench.told[0].to == ("oncall",)


def test_without_a_name_everyone_is_told(bench: Bench) -> None:
    assert Notify().run(bench.request("notify"), bench).why == "told everyone"


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(ValidationError):
        NotifyWith.model_validate({"too": ["oncall"]})


def test_it_never_counts_as_disruptive_or_as_proof() -> None:
    assert (Notify.disruptive, Notify.proves) == (False, False)
