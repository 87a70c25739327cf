"""Tokenises a stream of pairs into shards, on all cores. Shards that are there already are not made again."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice, zip_longest
from pathlib import Path
from queue import SimpleQueue

from regard import documents, files
from regard.errors import UserError
from regard.text import shards
from regard.text.code_version import code_version
from regard.text.pairs import Pairs
from regard.text.stream import PairStream
from regard.text.tokenizer import TokenizerPair

WORKER = (sys.executable, "-m", "regard.text.shard_worker")
MAX_PROCESSES = 64
Encode = Callable[[Path, Pairs], None]
Report = Callable[[int, int], object]
"""Gets the number of shards that are there, and of all."""


def write_shards(
    stream: PairStream, tokenizers: TokenizerPair, report: Report = lambda done, total: None
) -> list[Path]:
    """The shards of a stream, in its order, all of them written. Of several processes, one does it."""
    folder = stream.folder / hash_tokenizers(tokenizers)
    total = -(-len(stream) // shards.PAIRS)
    paths = [folder / f"{number:06}.ids" for number in range(total)]
    with files.lock(folder, wait=True):
        files.remove_temporary(folder)
        missing = [path for path in paths if not is_valid(path, tokenizers)]
        if missing:
            report(total - len(missing), total)
            # What the processes read: a file that is a part of the cache, not of a run.
            tokenizers.save(folder / "tokenizer.json")
            with open_encoders(folder, tokenizers, min(len(missing), count_cores())) as encode:
                encode_missing(stream, paths, set(missing), encode, report)
    return paths


def hash_tokenizers(tokenizers: TokenizerPair) -> str:
    content = [code_version(), shards.VERSION, shards.PAIRS, tokenizers.to_json()]
    return hashlib.sha256(documents.dumps(content).encode()).hexdigest()[:32]


def is_valid(path: Path, tokenizers: TokenizerPair) -> bool:
    try:
        shards.read(path, tokenizers)
    except (OSError, ValueError):  # missing, or damaged
        return False
    return True


def count_cores() -> int:
    """How many processes tokenise."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # no Linux
        cores = os.cpu_count() or 1
    return min(cores, MAX_PROCESSES)


def encode_missing(
    stream: PairStream, paths: list[Path], missing: set[Path], encode: list[Encode], report: Report
) -> None:
    """Read the pairs once, and encode those of missing shards, as many at a time as there are encoders."""
    idle: SimpleQueue[Encode] = SimpleQueue()
    for each in encode:
        idle.put(each)

    def run(path: Path, pairs: Pairs) -> None:
        encoder = idle.get()
        try:
            encoder(path, pairs)
        finally:
            idle.put(encoder)

    done, running = len(paths) - len(missing), set[Future[None]]()
    with ThreadPoolExecutor(len(encode)) as pool:
        for path, pairs in zip_longest(paths, in_blocks(stream, shards.PAIRS)):
            if path is None or pairs is None:
                raise UserError(
                    "the files of data.train have changed while they were read: try again"
                )
            if path in missing:
                running.add(pool.submit(run, path, pairs))
            while len(running) > len(encode):  # one more waits: its pairs are read in time
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                done += len([future.result() for future in finished])
                report(done, len(paths))
        for future in running:
            future.result()
            done += 1
            report(done, len(paths))


def in_blocks(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[Pairs]:
    remaining = iter(pairs)
    while block := list(islice(remaining, size)):
        yield block


@contextmanager
def open_encoders(folder: Path, tokenizers: TokenizerPair, count: int) -> Iterator[list[Encode]]:
    """Functions that write a shard, each in a process of its own; in this process, if there is one."""
    if count == 1:
        yield [lambda path, pairs: shards.write(path, pairs, tokenizers)]
        return
    with ExitStack() as stack:
        yield [stack.enter_context(open_worker(folder / "tokenizer.json")) for _ in range(count)]


@contextmanager
def open_worker(tokenizer: Path) -> Iterator[Encode]:
    """A process that writes one shard after the other: see `regard.text.shard_worker`."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}  # a process for each core
    with subprocess.Popen(
        [*WORKER, str(tokenizer)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def encode(path: Path, pairs: Pairs) -> None:
            try:
                stdin.write(
                    documents.dumps([str(path), pairs], ensure_ascii=False).encode() + b"\n"
                )
                stdin.flush()
            except BrokenPipeError:
                pass  # it has ended: there is no answer
            answer = stdout.readline()
            if not answer:
                raise UserError(
                    f"a process that tokenises has ended with exit code {process.wait()}, as one does if "
                    "the memory is full: run the command again, and it goes on with the shards that are "
                    f"in {path.parent}"
                )
            if message := json.loads(answer):
                raise UserError(message)

        try:
            yield encode
        except BaseException:
            process.kill()
            with suppress(BrokenPipeError):  # of what was not sent
                stdin.close()
            raise
