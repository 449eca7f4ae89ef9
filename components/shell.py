"""What stands around the panels: header, theme switch and the bar of steps."""

from __future__ import annotations

import html
from dataclasses import dataclass

import gradio as gr

from components import text

LOGO = """<svg class="logo" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
<rect width="32" height="32" rx="9" fill="currentColor"/>
<path d="M8 9c6 0 5 7 8 7M8 23c6 0 5-7 8-7h8" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round"/>
<circle cx="24" cy="16" r="2.6" fill="#fff"/></svg>"""

THEME_ICON = """<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" focusable="false">
<path d="M12 3a9 9 0 1 0 0 18z" fill="currentColor"/>
<circle cx="12" cy="12" r="8.5" fill="none" stroke="currentColor" stroke-width="1.8"/></svg>"""

HEADER_SCRIPT = """
const stored = (() => { try { return localStorage.getItem('mixdesk-theme'); } catch { return null; } })();
if (stored && !new URLSearchParams(location.search).has('__theme')) {
  document.body.classList.toggle('dark', stored === 'dark');
}
element.querySelector('button').addEventListener('click', () => {
  const dark = document.body.classList.toggle('dark');
  try { localStorage.setItem('mixdesk-theme', dark ? 'dark' : 'light'); } catch { /* private window */ }
});
"""

STEPS_SCRIPT = """
const show = (step, focus) => {
  document.body.dataset.step = step;
  element.querySelectorAll('button').forEach((button) => {
    const here = button.dataset.step === step;
    here ? button.setAttribute('aria-current', 'step') : button.removeAttribute('aria-current');
    if (here && focus) button.focus({ preventScroll: true });
  });
  if (focus) window.scrollTo({ top: 0 });
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (!button) return;
  show(button.dataset.step, true);
  trigger('step', { step: button.dataset.step });
});
watch('value', () => show(props.value, false));
show(props.value, false);
"""


@dataclass(frozen=True)
class Shell:
    """The parts of the frame that others listen to."""

    header: gr.HTML
    steps: gr.HTML


def build() -> Shell:
    """Header and step bar; the panels follow below them."""
    header = gr.HTML(
        html_template=(
            f'<header class="masthead">{LOGO}<h1>{text.TITLE}</h1><p>{html.escape(text.TAGLINE)}</p>'
            f'<button type="button" class="icon-button" aria-label="{text.THEME_BUTTON}">{THEME_ICON}</button></header>'
        ),
        js_on_load=HEADER_SCRIPT,
        apply_default_css=False,
        elem_id="header",
    )
    buttons = "".join(
        f'<li><button type="button" data-step="{name}"><span class="step-dot">{number}</span>{html.escape(label)}'
        f"</button></li>"
        for number, (name, label) in enumerate(text.STEPS, 1)
    )
    steps = gr.HTML(
        value="models",
        html_template=f'<nav aria-label="{text.STEPS_LABEL}"><ol class="step-bar">{buttons}</ol></nav>',
        js_on_load=STEPS_SCRIPT,
        apply_default_css=False,
        elem_id="steps",
    )
    return Shell(header, steps)


def go(step: str) -> str:
    """Script for a button that leads to another step, as if the step bar had been used."""
    return f"() => document.querySelector('#steps [data-step={step}]').click()"
