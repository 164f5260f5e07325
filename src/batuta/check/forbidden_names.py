"""Names that workflow code must not use, and the rule that each of them breaks."""

from __future__ import annotations

import ast
import math

_TIME = (
    "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time "
    "thread_time_ns clock_gettime clock_gettime_ns localtime ctime asctime tzname timezone altzone"
)
_MACHINE = (
    "environ environb getenv getenvb getpid getppid getlogin getuid geteuid getgid getcwd uname cpu_count "
    "getloadavg times"
)
_FILES = (
    "open fdopen read write listdir scandir walk stat lstat remove unlink rename replace mkdir makedirs rmdir "
    "removedirs link symlink readlink truncate chmod chown access utime mkfifo"
)
_FILE_QUESTIONS = "exists lexists isfile isdir islink getsize getmtime getatime getctime samefile realpath abspath"

_EXACT = (
    {f"time.{name}": "W101" for name in _TIME.split()}
    | {f"datetime.datetime.{name}": "W101" for name in ("now", "utcnow", "today")}
    | {f"os.{name}": "W104" for name in _MACHINE.split()}
    | {f"os.{name}": "W201" for name in _FILES.split()}
    | {f"os.path.{name}": "W201" for name in _FILE_QUESTIONS.split()}
    | {f"uuid.{name}": "W103" for name in ("uuid1", "uuid4", "uuid6", "uuid7")}
    | {f"os.{name}": "W301" for name in ("fork", "forkpty")}
    | {f"os.{name}": "W302" for name in ("system", "popen", "startfile", "kill")}
    | {
        f"asyncio.{name}": "W301"
        for name in ("to_thread", "run", "Runner", "new_event_loop", "run_coroutine_threadsafe")
    }
    | {f"asyncio.{name}": "W302" for name in ("create_subprocess_exec", "create_subprocess_shell")}
    | {f"asyncio.{name}": "W202" for name in ("open_connection", "open_unix_connection", "start_server")}
    | {f"sqlalchemy.{name}": "W202" for name in ("create_engine", "ext.asyncio.create_async_engine")}
    | {
        "time.sleep": "W107",
        "datetime.date.today": "W101",
        "uuid.getnode": "W104",
        "os.urandom": "W102",
        "os.getrandom": "W102",
        "sys.argv": "W104",
        "sys.stdin": "W201",
        "sys.stdout": "W204",
        "sys.stderr": "W204",
        "socket.gethostname": "W104",
        "socket.getfqdn": "W104",
        "getpass.getuser": "W104",
        "getpass.getpass": "W201",
        "id": "W105",
        "hash": "W105",
        "open": "W201",
        "io.open": "W201",
        "codecs.open": "W201",
        "input": "W201",
        "print": "W204",
        "pprint.pprint": "W204",
        "logging.getLogger": "",
        "asyncio.as_completed": "W303",
        "pathlib.Path.cwd": "W104",
        "pathlib.Path.home": "W104",
        "random.Random": "",
    }
)
"""By full name; "" is allowed although its module is not."""

_MODULES = (
    dict.fromkeys("random secrets numpy.random".split(), "W102")
    | dict.fromkeys("platform locale pwd grp resource psutil".split(), "W104")
    | dict.fromkeys("shutil tempfile glob fileinput aiofiles mmap fcntl".split(), "W201")
    | dict.fromkeys(
        "requests httpx aiohttp urllib.request urllib3 http.client socket ssl socketserver select selectors smtplib "
        "aiosmtplib ftplib imaplib poplib telnetlib xmlrpc.client websockets grpc paramiko sqlite3 aiosqlite dbm "
        "shelve asyncpg psycopg psycopg2 pymysql aiomysql MySQLdb oracledb redis pymongo motor elasticsearch boto3 "
        "botocore aioboto3 kafka confluent_kafka aiokafka pika aio_pika nats pulsar stripe openai anthropic".split(),
        "W202",
    )
    | dict.fromkeys("logging structlog loguru".split(), "W203")
    | dict.fromkeys(
        "threading _thread multiprocessing concurrent.futures queue joblib anyio.to_thread trio".split(), "W301"
    )
    | dict.fromkeys("subprocess pty pexpect".split(), "W302")
)
"""Everything in these."""

_RIGHT_WITH: dict[str, tuple[float, str]] = {
    "time.gmtime": (1, "W101"),
    "time.strftime": (2, "W101"),
    "datetime.datetime.fromtimestamp": (2, "W101"),
    "datetime.date.fromtimestamp": (2, "W101"),
    "random.Random": (1, "W102"),
    "asyncio.Future": (math.inf, "W305"),
    "asyncio.Task": (math.inf, "W305"),
}
"""Calls that break a rule unless they have that many arguments."""

_BLOCKING_MODULES = tuple(
    "requests urllib.request urllib3 http.client smtplib ftplib psycopg2 pymysql subprocess".split()
)
_BLOCKING = frozenset(
    [
        "time.sleep",
        "os.system",
        "input",
        *(f"httpx.{verb}" for verb in "get post put patch delete head request".split()),
    ]
)

_LOOP_METHODS = (
    dict.fromkeys(
        "run_in_executor call_soon_threadsafe run_until_complete run_forever set_default_executor".split(), "W301"
    )
    | dict.fromkeys(
        "getaddrinfo getnameinfo create_connection create_server create_unix_connection create_unix_server "
        "create_datagram_endpoint sock_recv sock_sendall sock_connect sock_accept add_reader add_writer".split(),
        "W202",
    )
    | dict.fromkeys("subprocess_exec subprocess_shell".split(), "W302")
    | dict.fromkeys("read_text read_bytes write_text write_bytes iterdir rglob".split(), "W201")
)
"""Methods that identify an event loop or a path, whatever its name."""

PATH_METHODS = frozenset(
    "open exists is_file is_dir stat lstat glob rglob iterdir mkdir rmdir touch unlink rename replace resolve "
    "read_text read_bytes write_text write_bytes chmod symlink_to hardlink_to samefile owner".split()
)
"""Disk operations of a pathlib.Path."""

_ERRORS = ("Error", "Exception", "Warning", "Timeout", "Interrupt")


def rule_for(name: str, call: ast.Call | None) -> str | None:
    """The rule that the use of this name breaks. `call`: the call of it, if it is one."""
    if name in _EXACT:
        return _EXACT[name] or _with_arguments(name, call)
    if call is None:
        return None
    if (code := _with_arguments(name, call)) is not None:
        return code
    if name.endswith(_ERRORS):  # raising one is no I/O
        return None
    return next((code for module, code in _MODULES.items() if name.startswith(module + ".")), None)


def _with_arguments(name: str, call: ast.Call | None) -> str | None:
    """Calls that are right with arguments, and wrong without."""
    if call is None or name not in _RIGHT_WITH:
        return None
    needed, code = _RIGHT_WITH[name]
    return code if len(call.args) + len(call.keywords) < needed else None


def method_rule(call: ast.Call) -> str | None:
    """The rule that the call of a method breaks, on any object."""
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "astimezone" and not call.args and not call.keywords:
        return "W101"
    return _LOOP_METHODS.get(call.func.attr)


def blocks(name: str) -> bool:
    """Whether it blocks the loop that an async activity runs on."""
    return name in _BLOCKING or (
        name.startswith(tuple(f"{m}." for m in _BLOCKING_MODULES)) and not name.endswith(_ERRORS)
    )
