# SPDX-License-Identifier: Apache-2.0
"""Prints the scalars TensorBoard finds in a folder, one "tag step value" a line. Exit code 77: no tensorboard."""
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)

events = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0, "scalars": 0})
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    for event in events.Scalars(tag):
        print(tag, event.step, f"{event.value:.6g}")
