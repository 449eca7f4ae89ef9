"""Mixdesk's page: `python app.py` starts it on http://127.0.0.1:7860."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr

import merger
from components import access, downloads, figure_board, merge_panel, mix_panel, models_panel, shell, text
from components.demo_skills import family
from components.desk import Desk, View, remember
from components.live import WhatIf
from components.start import wire_start
from components.theme import theme
from merger import JobStore, MergerError

ASSETS = Path(__file__).resolve().parent / "assets"


def build(store: JobStore, what_if: WhatIf) -> gr.Blocks:
    """The whole page: every panel first, then what connects them."""
    mixer, merges = mix_panel.Mixer(what_if), merge_panel.Merges(store, what_if)
    with gr.Blocks(title=text.TITLE, analytics_enabled=False) as page:
        memory = remember()
        frame = shell.build()
        with gr.Column(elem_id="step-models", elem_classes=["step"]):
            models = models_panel.build()
        with gr.Column(elem_id="step-mix", elem_classes=["step"]):
            mix = mix_panel.build(what_if.methods)
        with gr.Column(elem_id="step-merge", elem_classes=["step"]):
            merge = merge_panel.build()
        desk = Desk(
            memory,
            views=(
                View(models.outputs, models_panel.shown),
                View(mix.outputs, mixer.shown),
                View([merge.dtype], merge_panel.shown),
            ),
            controls=[*mix.pool.inputs, merge.dtype],
            read=mixer.read,
            redraw=mix_panel.redrawing(mix, mixer, memory),
        )
        models_panel.wire(models, desk, family())
        mix_panel.wire(mix, mixer, desk)
        merge_panel.wire(merge, merges, desk, frame.steps)
        wire_start(page, desk, frame, models.problem, merge, merges)
    return page


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line and environment; the command line wins."""
    port = os.environ.get("GRADIO_SERVER_PORT") or os.environ.get("PORT") or 7860
    host = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if access.is_hosted() else "127.0.0.1")
    data = os.environ.get("MIXDESK_DATA", "~/.cache/mixdesk")
    parser = argparse.ArgumentParser(description=text.TAGLINE)
    parser.add_argument("--port", type=int, default=int(port), help="default: PORT, or 7860")
    parser.add_argument("--host", default=host, help="address to listen on (default: this machine only)")
    parser.add_argument("--data", default=data, help="folder for merges (default: MIXDESK_DATA, or ~/.cache/mixdesk)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Start the page and stay until it is stopped."""
    given = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # lets the store end its merges
    try:
        store = JobStore(given.data, policy=access.policy())
    except MergerError as error:
        sys.exit(text.CANNOT_START.format(reason=error))
    what_if = WhatIf({facts.name: facts for facts in merger.describe_methods()})
    page = build(store, what_if)
    try:
        launch(page, store, given.host, given.port)
    except OSError:
        sys.exit(text.PORT_TAKEN.format(port=given.port))
    threading.Thread(target=what_if.warm_up, args=(family(),), daemon=True).start()
    print(text.STARTED.format(address=page.local_url), flush=True)
    page.block_thread()


def launch(page: gr.Blocks, store: JobStore, host: str, port: int) -> None:
    """Serve the page, its own routes and the guards before them.

    Raises:
        OSError: the port is taken.
    """
    page.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        theme=theme(),
        css_paths=ASSETS / "style.css",
        favicon_path=ASSETS / "icon.svg",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        show_error=False,
        blocked_paths=[str(store.data_dir)],
        app_kwargs={
            "routes": [*access.closed(), *figure_board.routes(), *downloads.routes(store)],
            "middleware": access.middleware(host),
        },
    )


if __name__ == "__main__":
    main()
