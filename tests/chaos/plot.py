"""Lines over time as an SVG file, without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, PANEL, MARGIN, GAP = 900, 170, 60, 45
COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2")

Series = Mapping[str, Sequence[float]]


def svg(title: str, minutes: Sequence[float], panels: Mapping[str, Series]) -> str:
    """Draw a panel below the other, each with its lines, from 0 to its greatest value."""
    height = MARGIN + len(panels) * (PANEL + GAP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="28" font-size="16">{escape(title)}</text>',
    ]
    for number, (heading, series) in enumerate(panels.items()):
        drawn += _panel(heading, minutes, series, MARGIN + number * (PANEL + GAP))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _panel(heading: str, minutes: Sequence[float], series: Series, top: int) -> list[str]:
    highest = max((value for values in series.values() for value in values), default=0.0) or 1.0
    last = max(minutes, default=0.0) or 1.0
    width, bottom = WIDTH - 2 * MARGIN - 80, top + PANEL - 20
    drawn = [
        f'<text x="{MARGIN}" y="{top + 4}" font-size="13">{escape(heading)}</text>',
        f'<path d="M{MARGIN} {top + 12}V{bottom}H{MARGIN + width}" fill="none" stroke="#999"/>',
        f'<text x="{MARGIN - 6}" y="{top + 20}" font-size="11" text-anchor="end">{highest:,.0f}</text>',
        f'<text x="{MARGIN - 6}" y="{bottom}" font-size="11" text-anchor="end">0</text>',
        f'<text x="{MARGIN + width}" y="{bottom + 15}" font-size="11" text-anchor="end">{last:.0f} min</text>',
    ]
    for place, (name, values) in enumerate(series.items()):
        color = COLORS[place % len(COLORS)]
        points = " ".join(
            f"{MARGIN + width * minute / last:.1f},{bottom - (bottom - top - 12) * value / highest:.1f}"
            for minute, value in zip(minutes, values, strict=True)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        drawn.append(
            f'<text x="{MARGIN + width + 8}" y="{top + 24 + place * 15}" font-size="11" fill="{color}">'
            f"{escape(name)}</text>"
        )
    return drawn
