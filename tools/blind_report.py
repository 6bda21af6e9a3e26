# SPDX-License-Identifier: Apache-2.0
"""What blind_predictions.py computes from its measurements. Pure."""
import math
import random
import statistics

LIMITS = {"mean": 0.03, "most": 0.07, "most_share": 29 / 32, "largest": 0.15, "memory_mean": 0.04, "memory_above": 0.05}


def ratios_of(records):
    """{plan: [ratio of each round to the mean of the reference steps before and after it]}."""
    found, before, waiting = {}, None, None
    for record in records:
        if record["kind"] != "sample":
            continue
        seconds = statistics.mean(record["seconds"])
        if record["of"] == "plan":
            waiting = record["name"], seconds
            continue
        if record["of"] == "after":
            name, taken = waiting
            found.setdefault(name, []).append(taken / ((before + seconds) / 2))
        before = seconds
    return found


def bootstrap(values, statistic=statistics.median, draws=2000, seed=1):
    """95 % interval of a statistic: percentiles over resamples with replacement (Efron 1979)."""
    source = random.Random(seed)
    found = sorted(statistic(source.choices(values, k=len(values))) for _ in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def stage_peaks(ranks, stages):
    """The largest peak of the ranks of each stage; ranks of a stage are next to each other."""
    size = len(ranks) // stages
    return [max(ranks[i * size:(i + 1) * size]) for i in range(stages)]


def judged(errors, memory_errors):
    """[(what, found, expected, is met)], from relative errors: predicted / measured - 1."""
    sizes = sorted(abs(error) for error in errors)
    mean, needed = statistics.mean(sizes), math.ceil(LIMITS["most_share"] * len(sizes))
    within = sum(size <= LIMITS["most"] for size in sizes)
    memory_mean = statistics.mean(abs(error) for error in memory_errors)
    above = max(1 / (1 + error) - 1 for error in memory_errors)  # measured / predicted - 1
    return [("mean error of step time", f"{mean:.2%}", f"at most {LIMITS['mean']:.0%}", mean <= LIMITS["mean"]),
            (f"plans within {LIMITS['most']:.0%}", f"{within} of {len(sizes)}", f"at least {needed}", within >= needed),
            ("largest error of step time", f"{sizes[-1]:.2%}", f"at most {LIMITS['largest']:.0%}", sizes[-1] <= LIMITS["largest"]),
            ("mean error of peak memory", f"{memory_mean:.2%}", f"at most {LIMITS['memory_mean']:.0%}",
             memory_mean <= LIMITS["memory_mean"]),
            ("largest peak above its prediction", f"{above:+.2%}", f"at most {LIMITS['memory_above']:.0%}",
             above <= LIMITS["memory_above"])]
