"""A process that tokenises: a line of JSON on its standard input is the path of a shard and its pairs.

It answers each with an empty line once the shard is written, or with an error, and ends with its input. See
`regard.text.shard_writer`.
"""

import gc
import json
import signal
import sys
from pathlib import Path

from regard import documents
from regard.errors import UserError
from regard.text import shards
from regard.text.tokenizer import TokenizerPair


def main(tokenizer: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: who started this process ends it
    gc.disable()  # it takes a third of the time to find nothing
    tokenizers = TokenizerPair.load(Path(tokenizer))
    for line in sys.stdin.buffer:
        path, pairs = json.loads(line)
        answer = ""
        try:
            shards.write(Path(path), pairs, tokenizers)
        except UserError as error:  # a full disk, say
            answer = str(error)
        sys.stdout.write(documents.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
