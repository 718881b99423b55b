"""Event files of TensorBoard, read by the format's description, not by their writer."""

import struct
import warnings

import pytest
from packages import needs

from fedjax_muon.tracking import follow, tensorboard

event_pb2 = needs("tensorboardX.proto.event_pb2")
pytestmark = pytest.mark.slow

CONFIG = {"lr": 0.1, "config": {"dataset": "digits"}}
START = event_pb2.SessionLog.START
ROWS = [{"round": r, "train_loss": 1 / (1 + r), "dropped": r} for r in range(0, 40, 10)]


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(path) -> list:
    """The events of a file: length, checksum of the length, event, its checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for place, part in ((8, data[:8]), (12 + length, body)):
            assert struct.unpack_from("<I", data, place) == (masked(part),)
        found.append(event_pb2.Event.FromString(body))
        data = data[16 + length :]
    return found


def shown(directory) -> dict[str, list[tuple[int, float]]]:
    """The points that TensorBoard shows: a start drops older ones from its step on."""
    points: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.session_log.status == START:
                for tag in points:
                    points[tag] = [p for p in points[tag] if p[0] < event.step]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    point = event.step, value.simple_value
                    points.setdefault(value.tag, []).append(point)
    return points


def expected(rows):
    single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    points = lambda name: [(row["round"], single(row[name])) for row in rows]
    return {name: points(name) for name in ("train_loss", "dropped")}


def logged(tracker, rows):
    with follow([tracker], CONFIG) as log:
        for row in rows:
            log(row)


def test_records_are_scalars_at_once_and_another_run_is_refused(tmp_path):
    with follow([tensorboard(tmp_path)], CONFIG) as log:
        for number, row in enumerate(ROWS, 1):
            log(row)
            assert shown(tmp_path) == expected(ROWS[:number])
    (path,) = tmp_path.iterdir()
    first, *rest = events(path)
    assert first.file_version == "brain.Event:2"
    (text,) = [v for e in rest for v in e.summary.value if v.tag.startswith("config")]
    assert '"config.dataset": "digits"' in text.tensor.string_val[0].decode()
    with pytest.raises(ValueError, match=r"event files of another run.*resume=True"):
        tensorboard(tmp_path)


@pytest.mark.parametrize("first", [0, 2])  # with all records, or the new ones alone
def test_a_resumed_run_shows_every_round_once(tmp_path, first):
    logged(tensorboard(tmp_path), ROWS[:3])
    logged(tensorboard(tmp_path, resume=True), ROWS[first:])
    assert len(list(tmp_path.iterdir())) == 2
    assert shown(tmp_path) == expected(ROWS)


def test_training_twice_with_one_tracker_goes_on(tmp_path):
    tracker = tensorboard(tmp_path)
    logged(tracker, ROWS[:2])
    logged(tracker, ROWS[1:])  # `train` evaluates the state that it is given
    assert shown(tmp_path) == expected(ROWS)


def test_a_directory_that_cannot_be_made_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.warns(UserWarning, match="TensorBoard in .* failed"),
        follow([tensorboard(tmp_path / "file" / "logs")], {}) as log,
    ):
        log(ROWS[0])


def test_tensorboard_itself_shows_these_points(tmp_path):
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name, reason="TensorBoard is not installed")
    logged(tensorboard(tmp_path), ROWS[:3])
    logged(tensorboard(tmp_path, resume=True), ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = accumulator.EventAccumulator(str(tmp_path))
        read.Reload()
    for tag, points in expected(ROWS).items():
        assert [(p.step, p.value) for p in read.Scalars(tag)] == points
