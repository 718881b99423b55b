"""Checkpoints: the same bits back, or an error that says what is wrong."""

import gc
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from fedjax_muon.simulation import checkpoint
from tests.support import federation
from tests.support.federation import assert_same_bits


class Inner(NamedTuple):
    moment: jax.Array
    nothing: tuple


class State(NamedTuple):
    index: jax.Array
    params: dict[str, jax.Array]
    opt: Any
    key: jax.Array


def made(seed: int) -> State:
    """What a simulation may hold: keys, one by one and stacked, bfloat16, nothing."""
    draw = jax.random.normal(jax.random.key(seed), (100, 130))  # not small
    return State(
        index=jnp.int32(seed),
        params={"w": draw, "b": jnp.array([jnp.nan, -0.0, 1e-40, seed])},
        opt=(Inner(draw[:3, :5].astype(jnp.bfloat16), ()), ()),
        key=jax.random.split(jax.random.key(seed), (2, 3)),
    )


MARK = "of these tests"


def save_all(directory: Path, seeds, mark=MARK):
    with checkpoint.open_checkpoints(directory) as checkpoints:
        for seed in seeds:
            checkpoint.save(checkpoints, seed, made(seed), mark)


def restored(directory: Path, template, mark=MARK):
    with checkpoint.open_checkpoints(directory) as checkpoints:
        found = checkpoint.restore(checkpoints, template, mark)
    return None if found is None else found[0]


@pytest.fixture(autouse=True, scope="module")
def small_heap():
    """Damaged checkpoints are followed by collections, here of what these tests make
    instead of all that other tests left in the process."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Checkpoints of rounds 2 and 3, of which there were four."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    save_all(directory, range(4))
    return directory


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return shutil.copytree(saved, tmp_path / "checkpoints")


def test_every_bit_comes_back(saved, tmp_path):
    got = restored(saved, made(9))
    assert_same_bits(got, made(3))
    assert (type(got), type(got.opt[0])) == (State, Inner)
    assert restored(tmp_path / "new", made(0)) is None  # nothing yet


def test_the_last_two_are_kept_and_the_newest_counts(copy):
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3"]
    shutil.rmtree(copy / "3")
    assert_same_bits(restored(copy, made(9)), made(2))
    save_all(copy, [10, 11])  # newest by number, not by name
    assert sorted(path.name for path in copy.iterdir()) == ["10", "11"]
    shutil.rmtree(copy / "10")
    save_all(copy, [9])
    assert_same_bits(restored(copy, made(0)), made(11))


def test_a_simulation_goes_on_from_what_was_saved(tmp_path):
    prepared = federation.federation()
    state, _ = prepared.train_rounds(prepared.init(jax.random.key(0)), 3)
    kept = jax.tree.map(jnp.copy, state)
    mark = checkpoint.fingerprint({"lr": 0.3}, state)
    with checkpoint.open_checkpoints(tmp_path) as checkpoints:
        checkpoint.save(checkpoints, 3, state, mark)
        expected, _ = prepared.train_rounds(state, 4)  # donates what was saved
        got, _ = checkpoint.restore(checkpoints, expected, mark)
    assert_same_bits(got, kept)
    assert_same_bits(prepared.train_rounds(got, 4)[0], expected)


def test_a_save_that_was_not_made_is_an_error(tmp_path):
    class Refusing:
        directory = tmp_path
        save = staticmethod(lambda *_, **options: False)

    with pytest.raises(checkpoint.CheckpointError, match="checkpoint 5 can't be saved"):
        checkpoint.save(Refusing, 5, made(0), MARK)


def test_fingerprints_tell_configurations_and_states_apart():
    config, state = {"lr": 0.1, "steps": 5}, made(0)
    wide = state._replace(index=jnp.zeros(3, jnp.int32))
    double = state._replace(index=jnp.float32(0))
    renamed = state._replace(params={"w": state.params["w"], "c": state.params["b"]})
    raw = state._replace(key=jax.random.key_data(state.key))
    marks = [
        checkpoint.fingerprint(config, state),
        checkpoint.fingerprint(config | {"lr": 0.2}, state),
        *(checkpoint.fingerprint(config, s) for s in (wide, double, renamed, raw)),
    ]
    assert len(set(marks)) == len(marks)
    same = checkpoint.fingerprint({"steps": 5, "lr": 0.1}, made(7))
    assert same == marks[0]  # neither values nor the order of names


def test_another_configuration_is_refused(saved):
    message = r"checkpoints/3 was written by another configuration or version; resume"
    with pytest.raises(checkpoint.CheckpointError, match=message):
        restored(saved, made(0), "of another")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"b": jnp.zeros(5)}, {"b": jnp.zeros(4, jnp.bfloat16)}, {"c": jnp.zeros(4)}],
    ids=["reshaped", "retyped", "extended"],
)
def test_states_of_other_shapes_are_refused(saved, change):
    state = made(0)
    template = state._replace(params=state.params | change)
    other = r"another configuration or version, its state.params\['[bc]'\] is .* must"
    with pytest.raises(checkpoint.CheckpointError, match=other):
        restored(saved, template, checkpoint.fingerprint({}, template))
    with pytest.raises(checkpoint.CheckpointError, match="is damaged; delete it"):
        restored(saved, template)  # even if the fingerprint says nothing


def files(directory: Path):
    return sorted(p.relative_to(directory) for p in directory.rglob("*") if p.is_file())


def outcome(directory: Path):
    """ "right", or "refused" with the one error that is allowed."""
    try:
        got = restored(directory, made(9))
    except checkpoint.CheckpointError as error:
        message = str(error)
        assert "\n" not in message
        assert str(directory) in message
        assert "another directory" in message  # what to do
        return "refused"
    assert_same_bits(got, made(3))
    return "right"


def flipped(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


DAMAGE = {
    "deleted": None,
    "half": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "flipped": flipped,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_give_the_right_bits_or_an_error(copy, damage):
    seen = {}
    for name in files(copy):
        content = (copy / name).read_bytes()
        if damage:
            (copy / name).write_bytes(damage(content))
        else:
            (copy / name).unlink()
        seen[name] = outcome(copy)
        (copy / name).write_bytes(content)
    newest = {result for name, result in seen.items() if name.parts[0] == "3"}
    assert "refused" in newest  # the files are those that are read
    assert outcome(copy) == "right"


@pytest.mark.slow
def test_directories_that_orbax_cannot_open_are_refused(copy):
    path = copy / "2" / "_CHECKPOINT_METADATA"  # not even the newest
    whole = path.read_text()
    path.write_text(whole.replace("performance_metrics", "performance"))
    message = r"cannot be opened \(.*performance.*delete"
    with pytest.raises(checkpoint.CheckpointError, match=message):
        restored(copy, made(9))
    path.write_text(whole)
    (copy / "4").mkdir()  # a step without files
    assert outcome(copy) == "refused"


@pytest.mark.slow
def test_a_half_written_checkpoint_is_ignored(copy):
    half = copy / "4.orbax-checkpoint-tmp"
    shutil.copytree(copy / "3", half)
    shutil.rmtree(half / "state" / "d")
    assert outcome(copy) == "right"
    save_all(copy, [4])
    assert_same_bits(restored(copy, made(9)), made(4))
    assert not half.exists()
