"""`regard`, also as `python -m regard`: from the first import on, a signal ends it with one sentence."""

import sys

from regard import signals
from regard.errors import describe_shortage


def main() -> None:
    """Run a command. A signal, and a lack of memory, disk space or open files, is no bug: no traceback."""
    try:
        with signals.end_at_signals():
            from regard.cli import main as run_command

            run_command()
    except KeyboardInterrupt as stop:
        end(str(stop) or "interrupted", signals.exit_code(stop))
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        shortage = describe_shortage(error)
        if not shortage:
            raise
        end(shortage, 2)


def end(sentence: str, code: int) -> None:
    sys.stderr.write(f"regard: {sentence}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
