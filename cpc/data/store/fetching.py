"""Files behind URLs, read whole by fsspec, and checked."""

import time
from collections.abc import Callable
from typing import Any

NUM_ATTEMPTS = 10  # waits of two minutes in total, enough for a server to restart
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
TIMEOUT_SECONDS = 30.0  # limit of seconds without data from an HTTP server
_BLOCK_BYTES = 2**20


def is_url(source: object) -> bool:
    """Return whether a source has a protocol, such as `https://HOST/corpus`; otherwise it is a path."""
    return "://" in str(source)


def fetch(url: str, most_bytes: int, check: Callable[[bytes], object]) -> bytes:
    """Return the content of a file. A failed request is repeated, and the wait before it doubles every time.

    Args:
        url: URL of any protocol that fsspec knows.
        most_bytes: largest legal size; a longer file is not read to its end.
        check: raises a ValueError on truncated or damaged content, which is then requested again.

    Raises:
        ValueError: if the protocol is unknown, or needs a package that is not installed.
        FileNotFoundError: if the server reports that there is no such file.
        ConnectionError: if all attempts fail. The message names the URL, the number of attempts and the last error.
    """
    wait, started, reason = FIRST_WAIT_SECONDS, time.monotonic(), ""
    for attempt in range(NUM_ATTEMPTS):
        if attempt:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        file_system, path, options = _file_system(url)
        try:
            with file_system.open(path, "rb", **options) as stream:
                content = _read(stream, most_bytes)
            check(content)
            return content
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no {url}") from error
        except Exception as error:  # every file system has its own error types
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
    raise ConnectionError(
        f"{url} could not be read: {NUM_ATTEMPTS} attempts in {time.monotonic() - started:.0f} s failed, the last one "
        f"with {reason}. Resume from the last checkpoint when the URL can be reached again"
    )


def _file_system(url: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the file system of a URL (fsspec keeps one per process), the file's path in it, and options of `open`."""
    import fsspec

    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout

        # The file is read in one request: if any size is given, fsspec does not ask for the size first.
        options = {"block_size": 0, "size": 1}
        timeout = ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS)
        settings = {"client_kwargs": {"timeout": timeout}}
    try:
        file_system, path = fsspec.core.url_to_fs(url, **settings)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{url} cannot be opened: {error}") from error
    return file_system, path, options


def _read(stream: Any, most_bytes: int) -> bytes:
    blocks, left = [], most_bytes + 1
    while left and (block := stream.read(min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
    if not left:
        raise ValueError(f"more than the {most_bytes} bytes that it should have")
    return b"".join(blocks)
