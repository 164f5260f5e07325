"""A batch job that saves its position: after a crash it goes on there, and no line is imported twice.

Prints:
    attempt 1 begins at line 0
    attempt 2 begins at line 60
    imported 100 lines, the sum is 4950
    the table has 100 rows
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Retry, activity_info, checkpoint, connect, job, last_checkpoint, progress

CHUNK = 20


@job(retry=Retry(attempts=3, first=0.01))
def import_file(file: str, table: str) -> str:
    attempt = activity_info().attempt
    line = last_checkpoint(int, 0)
    print(f"attempt {attempt} begins at line {line}")
    lines = Path(file).read_text().splitlines()
    with closing(sqlite3.connect(table)) as connection:
        while line < len(lines):
            rows = [(line + n, int(value)) for n, value in enumerate(lines[line : line + CHUNK])]
            with connection:  # what comes after the last checkpoint may come again: the key makes that harmless
                connection.executemany("INSERT OR REPLACE INTO imported VALUES (?, ?)", rows)
            if line == 60 and attempt == 1:
                raise ConnectionError("the disk was pulled out")
            line += len(rows)
            checkpoint.sync(line)
            progress(f"{line} of {len(lines)}")
        total = connection.execute("SELECT sum(value) FROM imported").fetchone()[0]
    return f"imported {line} lines, the sum is {total}"


async def main(folder: Path) -> None:
    file, table = folder / "numbers.txt", folder / "numbers.db"
    file.write_text("\n".join(map(str, range(100))))
    with closing(sqlite3.connect(table)) as connection:
        connection.execute("CREATE TABLE imported (line INTEGER PRIMARY KEY, value INTEGER)")
    async with connect(f"sqlite:///{folder / 'import.db'}") as batuta, batuta.worker(jobs=[import_file]):
        handle = await batuta.enqueue(import_file, str(file), str(table), unique="numbers.txt")
        print(await handle.result())
    with closing(sqlite3.connect(table)) as connection:
        count = connection.execute("SELECT count(*) FROM imported").fetchone()[0]
        print(f"the table has {count} rows")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
