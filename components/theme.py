"""The page's looks: one hue on slate, strings for fonts so that nothing is fetched."""

from __future__ import annotations

import gradio as gr


def theme() -> gr.themes.Base:
    """Gradio's Soft theme, calmer: no label chips, readable primary buttons, light shadows."""
    return gr.themes.Soft(
        primary_hue="indigo",
        secondary_hue="indigo",
        neutral_hue="slate",
        radius_size="lg",
        spacing_size="md",
        text_size="md",
        font=["Inter", "system-ui", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        button_primary_text_color="white",
        block_title_background_fill="none",
        block_title_background_fill_dark="none",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_title_padding="0",
        block_label_background_fill="none",
        block_label_background_fill_dark="none",
        block_border_width="1px",
        block_border_color="*neutral_200",
        block_border_color_dark="*neutral_800",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        block_shadow="0 1px 2px rgb(15 23 42 / 6%)",
        block_shadow_dark="none",
        input_border_width="1px",
        input_border_color="*neutral_300",
        input_border_color_dark="*neutral_700",
        input_background_fill_dark="*neutral_800",
        input_shadow="none",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        checkbox_border_color="*neutral_400",
        checkbox_border_color_dark="*neutral_500",
        button_secondary_border_color="*neutral_300",
        button_secondary_border_color_dark="*neutral_600",
        button_border_width="1px",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_background_fill_hover_dark="*neutral_700",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        slider_color="*primary_600",
        slider_color_dark="*primary_400",
    )
