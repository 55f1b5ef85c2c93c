"""What an intent records of where its command runs, and what that proves once nobody saw how it ended."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.sandboxes.isolation import Fate, Isolation, fate_of_owner, present, proved, read_isolation
from perdure.sandboxes.strategies import NAMES
from perdure.sandboxes.table import owner


def recorded(strategy: str = "userns+proc", **changes: str) -> Isolation:
    return msgspec.structs.replace(present(strategy), **changes)


@given(st.sampled_from(NAMES))
def test_what_is_recorded_is_read_again(strategy: str) -> None:
    text = present(strategy).recorded()

    assert text.startswith(f"local:{strategy} ")
    assert read_isolation(text) == present(strategy)


@pytest.mark.parametrize(
    "text", ["", "none", "local", "local:process-group", "local:jail a b 1.2.3", "other:pgroup a b c"]
)
def test_what_is_no_record_of_ours_proves_nothing(text: str) -> None:
    assert read_isolation(text) is None
    assert proved(None, "gone") == "Whether anything that it had started still runs is not known."


# -- what became of the process that ran it ------------------------------------------------------


def test_this_process_lives() -> None:
    assert fate_of_owner(recorded()) == "lives"


def test_a_process_that_ended_is_gone_also_when_another_has_its_pid() -> None:
    child = subprocess.Popen(["sleep", "300"])
    name = owner(child.pid)
    assert fate_of_owner(recorded(owner=name)) == "lives"
    child.kill()
    child.wait()
    assert fate_of_owner(recorded(owner=name)) == "gone"

    namespace, _, started = name.split(".")
    assert fate_of_owner(recorded(owner=f"{namespace}.{os.getpid()}.{int(started) - 1}")) == "gone"


def test_another_boot_of_this_machine_is_told_from_another_machine_and_another_container() -> None:
    assert fate_of_owner(recorded(boot="another")) == "rebooted"
    assert fate_of_owner(recorded(boot="another", machine="another")) == "elsewhere"
    assert fate_of_owner(recorded(owner="17.1.1")) == "elsewhere"
    assert fate_of_owner(recorded(boot="-")) == "elsewhere"


# -- in words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["pidns+proc", "userns+proc", "pidns", "userns", "bwrap"])
def test_a_namespace_proves_the_death_of_everything(strategy: str) -> None:
    assert proved(recorded(strategy), "gone") == (
        "The command and everything it had started were killed with its process."
    )


def test_a_subreaper_proves_it_unless_it_was_killed_itself() -> None:
    assert proved(recorded("subreaper"), "gone") == (
        "The command and everything it had started were killed with its process, unless the command had killed the "
        "helper that does this. Nothing of it was found now."
    )
    assert proved(recorded("subreaper"), "gone", ["sleep 300"]).endswith("Found now and killed: sleep 300.")


def test_a_process_group_proves_nothing_and_says_what_was_swept() -> None:
    assert proved(recorded("pgroup"), "gone") == (
        "What it had started may still be running. Nothing of it was found now."
    )
    many = [f"sleep {number}" for number in range(12)]
    assert proved(recorded("pgroup"), "gone", many).endswith("Found now and killed: " + ", ".join(many[:10]) + ", ….")


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize(
    "fate, words",
    [
        ("rebooted", "The machine was started anew since: nothing that it had started still runs."),
        ("lives", "still lives: what it had started may still run."),
    ],
)
def test_a_new_boot_proves_death_and_a_living_process_proves_none_whatever_the_strategy(
    strategy: str, fate: Fate, words: str
) -> None:
    assert proved(recorded(strategy), fate).endswith(words)


def test_elsewhere_it_depends_on_a_process_that_cannot_be_seen() -> None:
    assert "if that process is gone" in proved(recorded("pidns"), "elsewhere")
    assert proved(recorded("pgroup"), "elsewhere").startswith("What it had started may still be running.")
