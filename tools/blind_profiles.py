# SPDX-License-Identifier: Apache-2.0
"""Profiles of one model over several transports: what does not depend on the transport becomes one mean. Pure."""
import statistics

# The keys and their defaults.
OF_PASSES = {"optimizer_seconds": 0, "widen_seconds": 0, "accumulate_seconds": 0, "add_sum_seconds": 0, "unit_lag": 0,
             "micro_batch_lag": 0, "busy_ranks_slowdown": 1}


def passes_key(transport, unit):
    """Profiles with the same key measured the same passes. Layers that are cut are computed differently over shared memory."""
    kind = "shared memory" if transport == "shared memory" else "TCP"
    return unit["kind"], unit["tensor"], unit["batch"], unit["recompute"], kind if unit["tensor"] > 1 else ""


def with_shared_passes(profiles):
    """{transport: its profile}, with means over all of them in the place of times that do not depend on the transport."""
    found = {}
    for transport, profile in profiles.items():
        for unit in profile["units"]:
            found.setdefault(passes_key(transport, unit), []).append(unit)

    def of_all(transport, unit):
        same = found[passes_key(transport, unit)]
        return {**unit, **{key: statistics.mean(one[key] for one in same) for key in ("forward", "backward")}}

    shared = {key: statistics.mean(profile.get(key, otherwise) for profile in profiles.values())
              for key, otherwise in OF_PASSES.items()}
    return {transport: {**profile, **shared, "units": [of_all(transport, unit) for unit in profile["units"]]}
            for transport, profile in profiles.items()}
