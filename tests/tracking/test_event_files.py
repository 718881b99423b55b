"""Event files of TensorBoard: what it shows of runs that began once or twice."""

import struct

import pytest
from packages import needs

from fedjax_muon.tracking import follow, tensorboard

event_pb2 = needs("tensorboardX.proto.event_pb2")
pytestmark = pytest.mark.slow

ROWS = [{"round": r, "train_loss": 1 / (1 + r), "dropped": r} for r in range(0, 40, 10)]
POINTS = [(row["round"], row["dropped"]) for row in ROWS]


def events(path) -> list:
    """The events of a file: length, checksum, event, checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def shown(directory) -> list[tuple[int, float]]:
    """The points that TensorBoard shows: a start drops older ones from its step on."""
    points: list[tuple[int, float]] = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.session_log.status == event_pb2.SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            values = {v.tag: v.simple_value for v in event.summary.value}
            if "dropped" in values:
                points.append((event.step, values["dropped"]))
    return points


def logged(tracker, rows):
    with follow([tracker], {"lr": 0.1, "config": {"dataset": "digits"}}) as log:
        for row in rows:
            log(row)


@pytest.mark.parametrize("first", [0, 2])  # with all records, or the new ones alone
def test_a_resumed_run_shows_every_round_once(tmp_path, first):
    logged(tensorboard(tmp_path), ROWS[:3])
    with pytest.raises(ValueError, match=r"event files of another run.*resume=True"):
        tensorboard(tmp_path)
    logged(tensorboard(tmp_path, resume=True), ROWS[first:])
    assert len(list(tmp_path.iterdir())) == 2
    assert shown(tmp_path) == POINTS
    texts = [
        value.tensor.string_val[0].decode()
        for path in tmp_path.iterdir()
        for event in events(path)
        for value in event.summary.value
        if value.tag.startswith("config")
    ]
    assert len(texts) == 2
    assert '"config.dataset": "digits"' in texts[0]


def test_training_twice_with_one_tracker_goes_on(tmp_path):
    tracker = tensorboard(tmp_path)
    logged(tracker, ROWS[:2])
    logged(tracker, ROWS[1:])  # `train` evaluates the state that it is given
    assert shown(tmp_path) == POINTS


def test_a_directory_that_cannot_be_made_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="TensorBoard in .* failed"):
        logged(tensorboard(tmp_path / "file" / "logs"), ROWS)
