"""Never return.

Once: stopped as well.
Harm: late
Stopped by: design
Seconds: 0.3
"""


def query(keys, j, beta):
    while True:
        pass
