"""Downloads of finished merges: single files, or everything as one zip, straight from the disk.

Nothing is copied, hashed or held in memory; length, ETag and byte ranges are honoured, so a broken
download can be resumed.  Every address carries a short-lived signature; a wrong one looks like a
job that does not exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from components.archive import Archive, Entry, layout
from merger import InputChangedError, Job, JobNotFound, JobStore, OutputFile

PREFIX = "/mixdesk/jobs"
CHUNK = 1 << 20
_SINGLE_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Content:
    """Something that can be sent whole or in part.

    Attributes:
        name: what the browser should call it.
        size: bytes.
        etag: strong; the same tag means the same bytes.
        read: the bytes from a start to a stop.
    """

    name: str
    media_type: str
    size: int
    etag: str
    read: Callable[[int, int], Iterator[bytes]]


def routes(store: JobStore) -> list[Route]:
    """The download routes, for ``launch(app_kwargs={"routes": ...})``."""

    def archive(request: Request) -> Response:
        return _answer(request, lambda: _archive(store, request))

    def file(request: Request) -> Response:
        return _answer(request, lambda: _file(store, request))

    return [
        Route(f"{PREFIX}/{{id}}/archive.zip", archive, methods=["GET"]),
        Route(f"{PREFIX}/{{id}}/files/{{name:path}}", file, methods=["GET"]),
    ]


def link(store: JobStore, job: Job, owner: str, name: str | None = None, root_path: str = "") -> str:
    """The address of one file of a finished job, or of the whole as a zip.

    Args:
        store: where the job is kept.
        job: a job of this owner.
        owner: the owner's secret.
        name: a name from `JobStore.files`; None for the zip.
        root_path: the root path of the page that shows the link.

    Raises:
        JobNotFound: the job is missing or someone else's.
    """
    expires, token = store.sign_download(job.id, owner, name)
    place = "archive.zip" if name is None else f"files/{quote(name)}"
    return f"{root_path.rstrip('/')}{PREFIX}/{job.id}/{place}?{urlencode({'e': expires, 't': token})}"


def _answer(request: Request, find: Callable[[], Content]) -> Response:
    try:
        content = find()
    except JobNotFound:
        return PlainTextResponse("Not found.", 404, {"Cache-Control": "no-store"})
    wanted = _requested_range(request, content)
    if wanted is None:
        return _send(request, content, range(content.size), 200)
    if not wanted:
        headers = {**_headers(content), "Content-Range": f"bytes */{content.size}", "Content-Length": "0"}
        return Response(status_code=416, headers=headers)
    return _send(request, content, wanted, 206)


def _send(request: Request, content: Content, wanted: range, status: int) -> Response:
    headers = {**_headers(content), "Content-Length": str(len(wanted))}
    if status == 206:
        headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{content.size}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return StreamingResponse(content.read(wanted.start, wanted.stop), status, headers)


def _requested_range(request: Request, content: Content) -> range | None:
    """The bytes that are asked for: None for all of them, empty when they do not exist.

    Several ranges, a malformed one, and one that is bound to another ETag ask for all, as RFC 9110 allows.
    """
    match = _SINGLE_RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or request.method != "GET" or request.headers.get("if-range", content.etag) != content.etag:
        return None
    first, last = match.groups()
    if not first:
        return range(max(0, content.size - int(last)), content.size) if last else None
    if not last:
        return range(int(first), content.size)
    return range(int(first), min(int(last) + 1, content.size)) if int(first) <= int(last) else None


def _headers(content: Content) -> dict[str, str]:
    return {
        "Content-Type": content.media_type,
        "Content-Disposition": f'attachment; filename="{content.name}"',
        "Content-Encoding": "identity",  # keeps Gradio from compressing, which would drop the length
        "Accept-Ranges": "bytes",
        "ETag": content.etag,
        "Cache-Control": "private, no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _file(store: JobStore, request: Request) -> Content:
    name = request.path_params["name"]
    (file,) = _opened_by(store, request, name)
    etag = f'"{file.crc32:08x}-{file.size:x}-{file.mtime_ns:x}"'
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.rsplit("/", 1)[-1])
    job_id = request.path_params["id"]

    def read(start: int, stop: int) -> Iterator[bytes]:
        return _read(store, job_id, file, start, stop)

    return Content(plain, "application/octet-stream", file.size, etag, read)


def _archive(store: JobStore, request: Request) -> Content:
    files = _opened_by(store, request, None)
    job_id = request.path_params["id"]
    job = store.get(job_id)
    if job is None:
        raise JobNotFound
    archive = layout([Entry(f"{job.file_name}/{file.name}", file.size, file.crc32) for file in files])

    def read(start: int, stop: int) -> Iterator[bytes]:
        return _read_archive(store, job_id, files, archive, start, stop)

    return Content(f"{job.file_name}.zip", "application/zip", archive.size, f'"{archive.digest}"', read)


def _opened_by(store: JobStore, request: Request, name: str | None) -> Sequence[OutputFile]:
    """The files that the request's signature opens, all of them present and unchanged."""
    expires, token = request.query_params.get("e", ""), request.query_params.get("t", "")
    if re.fullmatch(r"[0-9]{1,12}", expires) is None:
        raise JobNotFound
    files = store.check_download(request.path_params["id"], name, int(expires), token)
    for file in files:
        store.open_file(request.path_params["id"], file).close()
    return files


def _read_archive(
    store: JobStore, job_id: str, files: Sequence[OutputFile], archive: Archive, start: int, stop: int
) -> Iterator[bytes]:
    for part in archive.parts:
        first, last = max(start, part.start) - part.start, min(stop, part.stop) - part.start
        if first >= last:
            continue
        if part.entry is None:
            yield part.data[first:last]
        else:
            yield from _read(store, job_id, files[part.entry], first, last)


def _read(store: JobStore, job_id: str, file: OutputFile, start: int, stop: int) -> Iterator[bytes]:
    if start >= stop:
        return
    with store.open_file(job_id, file) as opened:
        while start < stop:
            data = os.pread(opened.fileno(), min(CHUNK, stop - start), start)
            if not data:
                raise InputChangedError("The file became shorter while it was being downloaded.", where=file.name)
            yield data
            start += len(data)
