# SPDX-License-Identifier: Apache-2.0
"""A run's curves in Weights & Biases' own files are those of its metrics, and a resumed run is the same run there.

The half of this file below `read` runs under the Python that has wandb, and knows its files: records of protobuf in
LevelDB's log format (github.com/google/leveldb, doc/log_format.md), with the plain CRC-32 and a header before them.
"""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import zlib

HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK = 32768
PIECE = struct.Struct("<IHB")  # CRC, bytes, which part of a record
WHOLE, LAST = 1, 4


def runs_of(python, run_dir):
    """What W&B's files of a run say, oldest first."""
    words = [python, __file__, "read", *sorted(pathlib.Path(run_dir).glob("wandb/offline-run-*/run-*.wandb"))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def a_run_and_its_continuation_are_one_run():
    from harness import check, losses, rows, scratch, settings, train
    from peers import peers_python

    environment = {"TESSERA_PYTHON": peers_python("wandb"), "WANDB_MODE": "offline"}
    with scratch() as folder:
        keys = settings(run__wandb="test")
        for more in ([], ["--resume", "latest", *settings(train__steps=9)]):
            run = train(folder, "--procs", 2, *keys, *more, env=environment)
            check("[monitor.wandb]" not in run.done(180), run.text(), (folder / "run/logs/wandb.log").read_text())
            run.check_nothing_left(10)
        found = runs_of(environment["TESSERA_PYTHON"], folder / "run")
        check(len(found) == 2 and found[0]["id"] == found[1]["id"], found)
        check(all(one["project"] == "test" and one["name"] == "run" and one["exit_code"] == 0 for one in found), found)
        check(found[0]["config"]["train"]["batch"] == 32 and found[1]["config"]["train"]["steps"] == 9, found)
        points = [point for one in found for point in one["history"]]
        for name, column in (("train/loss", "loss"), ("train/gradient_norm", "gradient_norm"),
                             ("train/learning_rate", "learning_rate")):
            logged = [(point["step"], point["values"][name]) for point in points if name in point["values"]]
            check(logged == [(row["step"], row[column]) for row in rows(folder / "run")], name, logged)
        check([step for step, _ in losses(folder / "run")] == list(range(1, 10)), losses(folder / "run"))
        logged = [(point["step"], point["values"]["validation/top1"], point["values"]["validation/loss"])
                  for point in points if "validation/top1" in point["values"]]
        check(logged == [(row["step"], row["top1"], row["loss"]) for row in rows(folder / "run", "eval")], logged)


def a_killed_run_has_failed_and_leaves_nothing():
    from harness import check, scratch, send, settings, train
    from peers import peers_python

    environment = {"TESSERA_PYTHON": peers_python("wandb"), "WANDB_MODE": "offline"}
    with scratch() as folder, train(folder, "--procs", 2, *settings(run__wandb="test", train__steps=1000000),
                                    env=environment) as run:
        run.wait_for_step(20, folder / "run", 180)
        send(run.pid, signal.SIGKILL)
        run.wait()
        run.check_nothing_left(30)
        found, = runs_of(environment["TESSERA_PYTHON"], folder / "run")
        steps = [point["step"] for point in found["history"]]
        check(found["exit_code"] == 1 and len(steps) >= 19 and steps == list(range(1, len(steps) + 1)), found["exit_code"], steps)


def a_python_without_the_package_is_told_before_the_first_step():
    from harness import check, scratch, settings, train

    with scratch() as folder:
        python = folder / "python"
        python.write_text('#!/bin/sh\nexec python3 -S -I "$@"\n')  # none of the packages that are installed
        python.chmod(0o755)
        expected = (f"error: [monitor.wandb] run.wandb is set, but wandb cannot be used: {python} says: No module named "
                    "'wandb': expected the wandb package for Python; pip install wandb, let TESSERA_PYTHON name a Python that has it, or set run.wandb = \"\"\n")
        for ranks in ([], ["--procs", 2]):
            run = train(folder, *ranks, *settings(run__wandb="test"), env={"TESSERA_PYTHON": str(python)})
            check(run.wait() == 2 and expected in run.text() and "step 1" not in run.text(), run.text())
            run.check_nothing_left()
            check(not (folder / "run").exists(), "a refused start leaves no folder:", list((folder / "run").glob("**/*")))


def records(data):
    """The records of a file as bytes."""
    assert data.startswith(HEADER), data[:16]
    at, record = len(HEADER), b""
    while at + PIECE.size <= len(data):
        if BLOCK - at % BLOCK < PIECE.size:  # too little room for a piece: the block ends with zeros
            at += BLOCK - at % BLOCK
            continue
        crc, length, part = PIECE.unpack_from(data, at)
        piece = data[at + PIECE.size:at + PIECE.size + length]
        assert len(piece) == length and zlib.crc32(bytes([part]) + piece) == crc, f"damaged at {at}"
        record += piece
        if part in (WHOLE, LAST):
            yield record
            record = b""
        at += PIECE.size + length


def read(paths):
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for path in paths:
        found = {"history": [], "exit_code": None}
        for data in records(pathlib.Path(path).read_bytes()):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                found |= {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name,
                          "config": config}
            elif kind == "history":
                values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                found["history"].append({"step": record.history.step.num, "values": values})
            elif kind == "exit":
                found["exit_code"] = record.exit.exit_code
        runs.append(found)
    print(json.dumps(runs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2:])
    else:
        from harness import main

        main(a_run_and_its_continuation_are_one_run, a_killed_run_has_failed_and_leaves_nothing,
             a_python_without_the_package_is_told_before_the_first_step)
