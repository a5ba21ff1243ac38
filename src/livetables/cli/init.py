"""`livetables init`: writes a configuration, with the tables and the join that the topics' records suggest."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from rich.console import Console
from rich.prompt import Prompt

from livetables.config.load import load_config
from livetables.config.values import Config
from livetables.init.document import Contents, document
from livetables.init.inference import JoinProposal, Proposal, proposed_joins, proposed_tables
from livetables.jvm.gateway import started_gateway
from livetables.kafka.inspection import Inspection
from livetables.model.errors import ConfigError, SetupError, TopicError
from livetables.model.joins import DEFAULT_JOIN, JOIN_TYPES, join_called

SAMPLE_RECORDS = 1000
ANSWER_SECONDS_MAX = 15.0
SAMPLE_SECONDS_MAX = 30.0
TOPICS_SHOWN = 100
LEFT_OUT_SHOWN = 5
TOPICS_BY_DEFAULT = 5
NONE = "none"

EXAMPLES = """examples:
  livetables init                                       asks, and shows what it finds
  livetables init --bootstrap-servers localhost:9092 --topic shop.orders shop.customers
      tables for these topics, with columns as their last records have them, and the join that they suggest
  livetables init --kafka-properties client.properties --topic shop.orders --output shop.toml
      with the properties of a client that works; the file is referred to, and no secret is copied
  livetables init --output my.toml < /dev/null          the shipped tables, with every setting explained

Then: livetables doctor --config livetables.toml, and livetables up --config livetables.toml
"""

Ask = Callable[[str, str], str]
Notify = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `livetables init`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT", help="your Kafka; without, `livetables up` starts a broker"
    )
    parser.add_argument("--kafka-properties", type=Path, metavar="FILE", help="Java client properties of your Kafka")
    parser.add_argument("--topic", nargs="+", action="extend", default=[], metavar="NAME", help="topics for tables")
    parser.add_argument(
        "--output", type=Path, default=Path("livetables.toml"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def run(arguments: argparse.Namespace) -> int:
    """Finds out what to write, writes it, and prints what to do next."""
    console = Console(highlight=False)

    def notify(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    output: Path = arguments.output
    _check_place(output, arguments.force)
    has_options = arguments.bootstrap_servers or arguments.kafka_properties or arguments.topic
    asks = not has_options and sys.stdin.isatty() and sys.stdout.isatty()

    def ask(question: str, default: str) -> str:
        try:
            return Prompt.ask(question, console=console, default=default, show_default=bool(default)).strip()
        except EOFError:  # Ctrl-D
            raise KeyboardInterrupt from None

    given = Contents(
        arguments.bootstrap_servers, _properties_file(arguments.kafka_properties, output), name=str(output)
    )
    topics = list(dict.fromkeys(arguments.topic))
    contents = asked(given, output, ask, notify) if asks else from_options(given, topics, output, notify)
    write(document(contents), output, arguments.force)
    notify(f"wrote {output}\n\nnext:\n  livetables doctor --config {output}\n  livetables up --config {output}")
    return 0


def from_options(given: Contents, topics: Sequence[str], output: Path, notify: Notify) -> Contents:
    """What the options say, without a question."""
    config = _loaded(document(given), output)
    if not topics:
        return given
    if config.kafka.bootstrap_servers is None:
        raise ConfigError(
            "--topic needs to know which Kafka has the topics",
            "give --bootstrap-servers, or --kafka-properties with bootstrap.servers in it",
        )
    proposals = _looked_at(config, lambda _: topics, notify)
    joins = proposed_joins(proposals)
    likely = joins[0] if joins and joins[0].shared else None
    return replace(given, proposals=proposals, join=likely, possible_join=next(iter(joins), None))


def asked(given: Contents, output: Path, ask: Ask, notify: Notify) -> Contents:
    """What somebody answers, who is shown what there is."""
    servers = ask("Kafka's bootstrap servers, host:port (nothing: a broker is started for you)", "")
    if not servers:
        return given
    path = ask("a file with further Kafka client properties, like a login (nothing: none)", "")
    contents = replace(
        given, bootstrap_servers=servers, properties_file=_properties_file(Path(path) if path else None, output)
    )
    config = _loaded(document(contents), output)
    proposals = _looked_at(
        config, lambda inspection: _asked_topics(inspection, config.control.topic, ask, notify), notify
    )
    if not proposals:
        return contents
    joins = proposed_joins(proposals)
    join = _asked_join(joins, ask, notify)
    if join is None:
        return replace(contents, proposals=proposals, possible_join=next(iter(joins), None))
    kind = _chosen(f"join {join.left} with {join.right} how", DEFAULT_JOIN.name, [*JOIN_TYPES], ask, notify)
    return replace(contents, proposals=proposals, join=join, join_type=join_called(kind) or DEFAULT_JOIN.name)


def write(text: str, output: Path, force: bool) -> None:
    """Write the file, if what is in it can be read."""
    _loaded(text, output)
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _check_place(output, force)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}", "give --output another path") from None


def _looked_at(config: Config, choose: Callable[[Inspection], Sequence[str]], notify: Notify) -> list[Proposal]:
    """Tables for the topics that are chosen, as their records suggest them."""
    notify("starting Java, and asking Kafka")
    with (
        started_gateway(config.pipeline.spark) as gateway,
        closing(Inspection(gateway, config.kafka.client_properties())) as inspection,
    ):
        chosen = choose(inspection)
        seen = inspection.look(chosen, time.monotonic() + ANSWER_SECONDS_MAX)
        records: dict[str, list[bytes | None]] = {}
        for name, topic in seen.items():
            if isinstance(topic, TopicError):
                raise topic
            sample = inspection.sample(topic, SAMPLE_RECORDS, time.monotonic() + SAMPLE_SECONDS_MAX)
            records[name] = [record.value for record in sample.records]
    proposals = proposed_tables(records)
    for proposal in proposals:
        notify(_summary(proposal))
    if proposals and not any(proposal.table.columns for proposal in proposals):
        raise SetupError(
            f"there is no record yet that could be a row: {', '.join(chosen)}",
            "send some first; or write the tables by hand: `livetables init` without topics shows how",
        )
    return proposals


def _asked_topics(inspection: Inspection, control_topic: str, ask: Ask, notify: Notify) -> list[str]:
    names = [name for name in inspection.names(time.monotonic() + ANSWER_SECONDS_MAX) if name != control_topic]
    if not names:
        notify("there is no topic yet: the shipped tables are written, to be changed")
        return []
    for number, name in enumerate(names[:TOPICS_SHOWN], 1):
        notify(f"  {number:>3}  {name}")
    if len(names) > TOPICS_SHOWN:
        notify(f"  and {len(names) - TOPICS_SHOWN:,} others")
    default = " ".join(names) if len(names) <= TOPICS_BY_DEFAULT else ""
    while True:
        answer = ask("topics for tables, by name or number, with blanks between", default)
        chosen = [_by_number(word, names) for word in re.split(r"[\s,]+", answer) if word]
        unknown = [name for name in chosen if name not in names]
        if chosen and not unknown:
            return list(dict.fromkeys(chosen))
        notify(f"there is no topic {', '.join(unknown)}" if unknown else "name at least one")


def _asked_join(joins: Sequence[JoinProposal], ask: Ask, notify: Notify) -> JoinProposal | None:
    if not joins:
        notify("no two tables share a column, so there is no join")
        return None
    by_name = {f"{join.left}.{join.on}={join.right}.{join.on}": join for join in joins}
    for name, join in by_name.items():
        notify(f"  {name}  ({join.shared:,} values seen in both)")
    default = next(iter(by_name)) if joins[0].shared else NONE
    return by_name.get(_chosen(f"which join, or {NONE}", default, [*by_name, NONE], ask, notify))


def _chosen(question: str, default: str, choices: Sequence[str], ask: Ask, notify: Notify) -> str:
    while True:
        answer = ask(question, default)
        if answer in choices:
            return answer
        notify(f"answer one of {', '.join(choices)}")


def _by_number(word: str, names: Sequence[str]) -> str:
    if word not in names and word.isdecimal() and 1 <= int(word) <= len(names):
        return names[int(word) - 1]
    return word


def _summary(proposal: Proposal) -> str:
    table = proposal.table
    found = f"{table.publish}: topic {table.topic}, {len(table.columns)} columns"
    unreadable = f", {proposal.unreadable:,} of which are no JSON object" if proposal.unreadable else ""
    named = "; ".join(f"{ascii(each.name)[1:-1][:80]} ({each.why})" for each in proposal.left_out[:LEFT_OUT_SHOWN])
    more = len(proposal.left_out) - LEFT_OUT_SHOWN
    left_out = f"\n  left out, but in the file as comments: {named}" if named else ""
    return f"{found}, by {proposal.records:,} records{unreadable}{left_out}{f'; and {more} more' if more > 0 else ''}"


def _properties_file(path: Path | None, output: Path) -> str | None:
    """The path as the configuration refers to it: relative to its own directory where it is below that."""
    if path is None:
        return None
    absolute, directory = path.absolute(), output.absolute().parent
    return str(absolute.relative_to(directory) if absolute.is_relative_to(directory) else absolute)


def _loaded(text: str, output: Path) -> Config:
    """The text read as a configuration in its place: what it refers to is relative to that."""
    try:
        with NamedTemporaryFile("w", encoding="utf-8", dir=output.parent, prefix=".livetables-init-") as draft:
            draft.write(text)
            draft.flush()
            return load_config(Path(draft.name), os.environ)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}", "give --output another path") from None


def _check_place(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise ConfigError(f"{output} is there already", "give --output another path, or --force to write over it")
