#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tessera plan explain: the page says what the JSON says, its commands train, and bad input is refused."""
import html.parser
import json
import shlex

from harness import SOURCE, TINY, check, main, scratch, tessera


class Page(html.parser.HTMLParser):
    """Text, sections, commands and references of a page; every element must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sections, self.references, self.text, self.commands = [], [], [], "", []
        self.feed(text)
        check(self.open == [], "not closed:", self.open)
        self.commands = [command.replace(" \\\n   ", "") for command in self.commands]  # as a shell does

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag == "section":
            self.sections.append(attributes["id"])
        if tag == "pre" and attributes.get("class") == "command":
            self.commands.append("")
        if tag not in ("meta", "br"):
            self.open.append((tag, attributes.get("class")))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        check(self.open and self.open[-1][0] == tag, "closes", tag, "in", self.open)
        self.open.pop()

    def handle_data(self, data):
        self.text += data
        if ("pre", "command") in self.open:
            self.commands[-1] += data


def explain(folder, *words, **options):
    return tessera("plan", "explain", "tiny.toml", "--profile", "h100.json", *words, folder=folder, **options)


def assumed(folder):
    (folder / "tiny.toml").write_text(TINY.replace('"fp32"', '"bf16"'))
    machine = SOURCE / "recipes/machines/h100_sxm.toml"
    tessera("plan", "assume", "tiny.toml", "--machine", machine, "-o", "h100.json", folder=folder).done(30)


def the_page_says_what_the_json_says():
    with scratch() as folder:
        assumed(folder)
        no_torch = {"TESSERA_TORCH_DIR": str(folder)}
        words = ("--hosts", "2x8", "--batch", 64)
        found = json.loads(explain(folder, *words, "--json", env=no_torch).done(60))
        page = Page((folder / "plan.html").read_text())
        check(page.references == [], page.references)
        sections = ["summary", "plans", "step", "stages", "layout", "sensitivity", "ranks", "constants"]
        check(page.sections == sections, page.sections)
        names = ["runner-up", "data parallel", "ZeRO-1 or ZeRO-2", "ZeRO-3", "tensor parallel", "pipeline",
                 "pipeline and tensor parallel"]
        check([one["name"] for one in found["alternatives"]] == names, found["alternatives"])
        for one in found["alternatives"]:
            check(one["name"] in page.text and one["reason"] in page.text, one)
        check([count["ranks"] for count in found["counts"]] == [1, 2, 4, 8, 16], found["counts"])
        for count in found["counts"]:
            images = 3600 * count["images_per_second"] / count["ranks"]
            check(abs(count["images_per_rank_hour"] / images - 1) < 1e-9, count)
            check(f"{count['images_per_rank_hour']:,.0f}" in page.text, count)
        check("H100 SXM (assumed)" in page.text and "NVIDIA" in page.text)


def the_commands_of_the_page_train():
    with scratch() as folder:
        assumed(folder)
        words = ("--ranks", 2, "--memory", "2GiB", "--set", "run.threads=1")
        text = explain(folder, *words, "--output", "two.html", "--plan", "two.json").done(60)
        check("wrote two.html; train the winner with:\n  tessera train tiny.toml" in text, text)
        [command] = Page((folder / "two.html").read_text()).commands
        check(command in text, command)
        train = shlex.split(command)
        check(train[:5] == ["tessera", "train", "tiny.toml", "--procs", "2"], train)
        dry = tessera(*train[1:], "--dry-run", folder=folder).done(60)
        check("2 ranks" in dry, dry)
        explain(folder, *words, "--output", "again.html").done(60)
        search, train = Page((folder / "again.html").read_text()).commands
        tessera(*shlex.split(search)[1:], folder=folder).done(60)
        tessera(*shlex.split(train)[1:], "--dry-run", folder=folder).done(60)


def bad_input_is_refused_in_one_line():
    with scratch() as folder:
        assumed(folder)
        (folder / "mine.html").write_text("mine")
        for words, says in (
            (("--ranks", 0), "--ranks: Value 0 not in range"),
            ((), "the number of ranks is not given: expected --ranks N or --hosts HxN"),
            (("--hosts", "2by8"), "--hosts is 2by8: expected hosts and ranks of each, such as 4x8"),
            (("--hosts", "2x8", "--ranks", 8), "--ranks is 8, and --hosts 2x8 are 16"),
            (("--ranks", 2, "--memory", "much"), "--memory is much"),
            (("--ranks", 2, "--memory", "1KiB"), "no plan fits into 1.00 KiB of a rank"),
            (("--ranks", 2, "--output", "nowhere/plan.html"), "--output is nowhere/plan.html"),
            (("--ranks", 2, "--output", "mine.html"), "the file mine.html exists already"),
            (("--ranks", 2, "--plan", "mine.html"), "the file mine.html exists already"),
            (("--ranks", 2, "--plan", "nowhere/plan.json"), "--plan is nowhere/plan.json"),
            (("--ranks", 2, "--output", "one", "--plan", "one"), "--plan and --output are both one"),
        ):
            run = explain(folder, *words)
            check(run.wait(60) == 2, words, run.tail())
            lines = run.text().splitlines()
            check(len(lines) == 1 and says in lines[0], words, says, run.text())
        check((folder / "mine.html").read_text() == "mine" and not (folder / "plan.html").exists())


if __name__ == "__main__":
    main(the_page_says_what_the_json_says, the_commands_of_the_page_train, bad_input_is_refused_in_one_line)
