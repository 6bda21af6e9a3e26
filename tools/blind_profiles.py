# SPDX-License-Identifier: Apache-2.0
"""Profiles of one model over several transports: what does not depend on the transport becomes one mean. Pure."""
import statistics

OF_PASSES = ("optimizer_seconds", "widen_seconds", "accumulate_seconds", "add_sum_seconds", "unit_lag", "micro_batch_lag")


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

    shared = {key: statistics.mean(profile.get(key, 0) for profile in profiles.values()) for key in OF_PASSES}
    return {transport: {**profile, **shared, "units": [of_all(transport, unit) for unit in profile["units"]]}
            for transport, profile in profiles.items()}
