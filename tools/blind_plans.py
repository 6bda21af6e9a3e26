# SPDX-License-Identifier: Apache-2.0
"""Plans that blind_predictions.py draws by seed. Pure."""
import itertools
import random

# Images of a step of all ranks, small and large, so that a step takes 0.1 to 1.5 s on two cores.
MODELS = {"S/16": (8, 16), "Ti/16": (16, 32)}
TRANSPORTS = ("shared memory", "TCP", "throttled")
LEVELS = ("replicate", "zero1", "zero2", "zero3")
MICRO_BATCHES = (1, 2, 4)
SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Refused(Exception):
    """One line for the user."""


def layouts(ranks):
    """(tensor, pipeline) for every power of two that divides the ranks."""
    degrees = [degree for degree in (1, 2, 4, 8) if ranks % degree == 0]
    return [(tensor, pipeline) for tensor in degrees for pipeline in degrees if ranks % (tensor * pipeline) == 0]


def factors_of(ranks):
    """{factor: its values}. "size": 0 is the model's small batch, 1 the large one."""
    return {"model": tuple(MODELS), "size": (0, 1), "transport": TRANSPORTS, "level": LEVELS, "recompute": (False, True),
            "layout": layouts(ranks), "micro_batches": MICRO_BATCHES}


def column(values, count, source):
    """`count` values, each as often as every other or once more, in random order."""
    values = list(values)
    source.shuffle(values)
    drawn = [values[i % len(values)] for i in range(count)]
    source.shuffle(drawn)
    return drawn


def is_possible(plan, ranks):
    """Ranks share the images evenly; a pipeline has several micro-batches, without which stages only wait."""
    pipeline, micro_batches = plan["layout"][1], plan["micro_batches"]
    images = MODELS[plan["model"]][plan["size"]]
    return images % (ranks // pipeline * micro_batches) == 0 and (pipeline == 1 or micro_batches > 1)


def draw_rows(seed, count, ranks):
    """Different possible combinations of factors. Every value of every factor occurs equally often, or once more."""
    factors = factors_of(ranks)
    all_rows = (dict(zip(factors, values)) for values in itertools.product(*factors.values()))
    possible = sum(is_possible(row, ranks) for row in all_rows)
    if count > possible // 2:
        raise Refused(f"--count is {count}: expected at most {possible // 2}, half of the different plans for {ranks} ranks")
    source = random.Random(seed)
    columns = {name: column(values, count, source) for name, values in factors.items()}
    for _ in range(10000):
        rows = [{name: values[i] for name, values in columns.items()} for i in range(count)]
        keys = [tuple(row.values()) for row in rows]
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        bad = [i for i in range(count) if not is_possible(rows[i], ranks) or first[keys[i]] != i]
        if not bad:
            return rows, source
        # A swap within a column keeps how often each value occurs.
        values = columns[source.choice(["micro_batches", "size", "level"])]
        i, j = bad[0], source.randrange(count)
        values[i], values[j] = values[j], values[i]
    raise Refused(f"no {count} different plans were found for --seed {seed}: try another seed, or a smaller --count")


def fits(schedule, row):
    """An interleaved pipeline takes micro-batches in groups of as many as there are stages."""
    return schedule != "interleaved" or row["micro_batches"] % row["layout"][1] == 0


def schedules_of(rows, source):
    """Of the rows that are pipelines: each schedule as often as every other or once more, where it fits."""
    schedules = column(SCHEDULES, len(rows), source)
    for i, row in enumerate(rows):
        if fits(schedules[i], row):
            continue
        other = next((j for j, of in enumerate(rows) if schedules[j] != schedules[i] and fits(schedules[i], of)), None)
        if other is None:
            raise Refused(f"no row of the {len(rows)} pipelines can be {schedules[i]}: try another seed")
        schedules[i], schedules[other] = schedules[other], schedules[i]
    return schedules


def draw_plans(seed, count, ranks):
    rows, source = draw_rows(seed, count, ranks)
    schedules = iter(schedules_of([row for row in rows if row["layout"][1] > 1], source))
    return [described(str(i + 1), row, ranks, schedules) for i, row in enumerate(rows)]


def described(name, row, ranks, schedules=iter(())):
    """The plan with the keys of the recipe that lay it out."""
    (tensor, pipeline), micro_batches = row["layout"], row["micro_batches"]
    images = MODELS[row["model"]][row["size"]]
    per_rank = images // (ranks // pipeline * micro_batches)
    sets = [f"shard.level={row['level']}", f"shard.recompute={str(row['recompute']).lower()}", f"train.batch={images}"]
    words = [row["model"], row["transport"], row["level"]]
    words += ["recompute"] * row["recompute"]
    if tensor > 1:
        sets.append(f"parallel.tensor={tensor}")
        words.append(f"tensor {tensor}")
    if pipeline > 1:
        schedule = next(schedules)
        sets += [f"parallel.pipeline={pipeline}", f"parallel.micro_batches={micro_batches}", f"parallel.schedule={schedule}"]
        sets += ["parallel.virtual_stages=2"] * (schedule == "interleaved")
        words.append(f"{pipeline} stages {schedule}")
    words.append(f"{micro_batches} x {per_rank} images")
    return {"name": name, "text": ", ".join(words), "model": row["model"], "transport": row["transport"], "stages": pipeline,
            "images_per_rank": per_rank, "sets": sets, "reference": reference_of(row)}


def reference_of(row):
    """Key of references(): a plan and its reference step are predicted from one profile."""
    return f"{row['model']}, {row['transport']}"


def references(ranks):
    """{model and transport: the plan to whose step those of both are compared}."""
    row = {"size": 1, "level": "zero2", "recompute": False, "layout": (1, 1), "micro_batches": 1}
    rows = [{**row, "model": model, "transport": transport} for model in MODELS for transport in TRANSPORTS]
    return {reference_of(row): described(f"reference {reference_of(row)}", row, ranks) for row in rows}
