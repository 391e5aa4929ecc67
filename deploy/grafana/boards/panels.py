"""Grafana's panels as this project uses them: every query checked, every panel with a text that says how to read it."""

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from grafana_foundation_sdk.builders import bargauge, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.boards import names

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""A variable, never the identity of some installation's data source."""

NO_TRAFFIC: Final = "no traffic"

PanelBuilder = Builder[dashboard.Panel]


class _Common(Protocol):
    """What the builders of all kinds of panels have in common."""

    def title(self, title: str) -> object: ...
    def description(self, description: str) -> object: ...
    def datasource(self, datasource: common.DataSourceRef) -> object: ...
    def span(self, w: int) -> object: ...
    def height(self, h: int) -> object: ...
    def no_value(self, no_value: str) -> object: ...
    def mappings(self, mappings: list[dashboard.ValueMapping]) -> object: ...
    def with_target(self, target: prometheus.Dataquery) -> object: ...


_Panel = TypeVar("_Panel", bound=_Common)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. ``legend`` is Grafana's template over labels; ``instant`` asks for the end of the range."""

    expression: str
    legend: str = ""
    instant: bool = False
    exemplars: bool = False


def graph(
    title: str,
    text: str,
    *queries: Query,
    unit: str = "short",
    span: int = 12,
    stacked: bool = False,
    highest: float | None = None,
    step: str = "",
) -> PanelBuilder:
    """Lines over time, or stacked bars. ``step`` is the shortest time between two points, where counts are shown."""
    panel = _described(timeseries.Panel(), title, text, queries, span=span, height=8)
    panel.unit(unit).min(0).line_width(1.5).fill_opacity(60 if stacked else 8)
    panel.legend(
        VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
        .calcs(["lastNotNull", "max"])
    )
    panel.tooltip(VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    if highest is not None:
        panel.max(highest)
    if step:
        panel.interval(step)
    if stacked:
        panel.draw_style(common.GraphDrawStyle.BARS).stacking(StackingConfig().mode(common.StackingMode.NORMAL))
    return panel


def figures(title: str, text: str, *queries: Query, span: int = 6, alarm: str = "", bound: str = "") -> PanelBuilder:
    """A few large numbers. ``alarm`` names the query that is red above 0, ``bound`` the one that is a share."""
    panel = _described(stat.Panel(), title, text, queries, span=span, height=5)
    panel.graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.VALUE)
    panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME).reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    panel.thresholds(_steps((None, "text")))
    if alarm:
        steps = _steps((None, "green"), (0.5, "red")).build()
        panel.override_by_query(alarm, [dashboard.DynamicConfigValue("thresholds", steps)])
    if bound:
        panel.override_by_query(
            bound, [dashboard.DynamicConfigValue("unit", "percentunit"), dashboard.DynamicConfigValue("decimals", 2)]
        )
    return panel


def rows(
    title: str,
    text: str,
    *queries: Query,
    columns: Sequence[tuple[str, str]],
    units: Sequence[tuple[str, str]] = (),
    span: int = 24,
) -> PanelBuilder:
    """A table of the labels and values of instant queries, merged by label.

    ``columns`` are the fields that stay, in order, with their headings; ``units`` are units by heading.
    """
    panel = _described(table.Panel(), title, text, queries, span=span, height=8, shape=PromQueryFormat.TABLE)
    panel.with_transformation(dashboard.DataTransformerConfig("merge", options={}))
    kept = {"include": {"names": [field for field, _ in columns]}}
    panel.with_transformation(dashboard.DataTransformerConfig("filterFieldsByName", options=kept))
    order = {field: place for place, (field, _) in enumerate(columns)}
    named = {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}}
    panel.with_transformation(dashboard.DataTransformerConfig("organize", options=named))
    for heading, unit in units:
        panel.override_by_name(heading, [dashboard.DynamicConfigValue("unit", unit)])
    return panel


def density(
    title: str, text: str, expression: str, *, unit: str = "short", span: int = 12, exemplars: bool = False
) -> PanelBuilder:
    """A histogram's buckets over time, as a heatmap."""
    query = Query(expression, "{{le}}", exemplars=exemplars)
    panel = _described(heatmap.Panel(), title, text, (query,), span=span, height=8, shape=PromQueryFormat.HEATMAP)
    panel.unit(unit).calculate(calculate=False).hide_legend().cell_gap(1)
    return panel


def histogram(title: str, text: str, expression: str, *, unit: str = "short", span: int = 12) -> PanelBuilder:
    """A histogram's buckets over the whole range, as bars; Grafana sorts them by their legends, so these are bare."""
    query = Query(expression, "{{le}}", instant=True)
    panel = _described(bargauge.Panel(), title, text, (query,), span=span, height=8, shape=PromQueryFormat.HEATMAP)
    panel.unit(unit).min(0).decimals(0).orientation(common.VizOrientation.HORIZONTAL)
    panel.display_mode(common.BarGaugeDisplayMode.BASIC).thresholds(_steps((None, "blue")))
    panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    return panel


def _described(
    panel: _Panel,
    title: str,
    text: str,
    queries: Sequence[Query],
    *,
    span: int,
    height: int,
    shape: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> _Panel:
    panel.title(title)
    panel.description(text)
    panel.datasource(DATASOURCE)
    panel.span(span)
    panel.height(height)
    panel.no_value(NO_TRAFFIC)
    nothing = dashboard.DashboardSpecialValueMapOptions(
        dashboard.SpecialValueMatch.NULL_AND_NAN, dashboard.ValueMappingResult(text=NO_TRAFFIC)
    )
    panel.mappings([dashboard.SpecialValueMap(nothing)])
    for letter, query in zip(string.ascii_uppercase, queries, strict=False):
        panel.with_target(_target(letter, query, shape))
    return panel


def _target(letter: str, query: Query, shape: PromQueryFormat) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).expr(names.check(query.expression)).format(shape)
    target.datasource(DATASOURCE).exemplar(query.exemplars)
    if query.legend:
        target.legend_format(query.legend)
    return target.instant() if query.instant or shape is PromQueryFormat.TABLE else target.range()


def _steps(*steps: tuple[float | None, str]) -> ThresholdsConfig:
    colours = [dashboard.Threshold(value=value, color=colour) for value, colour in steps]
    return ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(colours)


def numbered(panels: Sequence[dashboard.Panel | dashboard.RowPanel]) -> None:
    """Give the panels of a dashboard their numbers, in their order."""
    for number, panel in zip(itertools.count(1), panels, strict=False):
        panel.id_val = number
