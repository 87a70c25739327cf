"""`regard bench serving`, in a second: its clients, and what it says about what they saw."""

import asyncio
import os
from types import SimpleNamespace

from regard.cli.benchmarks import tabulate_serving
from regard.serve.load_test import Contender, LoadTest, Seen, run_round


def test_clients_of_the_load_test(client):
    contender = Contender("batched", process=SimpleNamespace(pid=os.getpid()), port=client.port)
    asyncio.run(run_round(contender, contender.seen, clients=2, seconds=0.3, seed=0))
    seen = contender.seen
    assert seen.statuses.keys() == {200}
    assert len(seen.latencies) == seen.statuses[200] == sum(map(len, seen.answers.values())) > 0
    assert LoadTest().count_wrong(contender) == 0
    answer = next(iter(seen.answers.values()))[0]
    answer["text"] += "!"
    assert LoadTest().count_wrong(contender) == 1


def test_figures_of_the_load_test():
    memory = [(at, 100 + (at if at < 30 else 30 + 2 * (at - 30) / 60)) for at in range(60)]
    seen = Seen(60.0, [0.1] * 98 + [0.2, 5.0], memory=memory)  # type: ignore[arg-type]
    seen.statuses.update({200: 100, 503: 4})
    row = seen.summarize()
    assert row["requests_per_second"] * 60 == 100
    assert (row["p50_milliseconds"], row["answered"]) == (100, 100)
    assert 200 <= row["p99_milliseconds"] <= 5000
    assert abs(row["memory_mib_per_minute"] - 2) < 1e-6  # of the second half
    result = {"run": "de-en", "clients": 2, "seconds": 60, "cores": 2}
    table = tabulate_serving({**result, "contenders": [{"contender": "x", "wrong": 0, **row}]})
    assert [next(iter(column.cells)) for column in table.columns][4:6] == ["0 of 100", "4"]
