"""One dashboard: its variables, its rows, and the JSON that Grafana reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    CustomVariable,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from grafana.boards import names
from grafana.boards.panels import DATASOURCE, PanelBuilder, numbered

WINDOWS: Final = ("15m", "1h", "6h", "1d")
"""What ``$window`` can be: how far back a rate of something rare looks."""

# A new posture, or one that was not there two minutes before.
_NEW_POSTURE: Final = (
    'count by (replica, posture) (reprise_replica_info{posture!="unknown"})'
    " unless count by (replica, posture) (reprise_replica_info offset 2m)"
)


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard in rows of panels, each 24 columns wide or a multiple. ``slug`` names its file and its address."""

    slug: str
    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[PanelBuilder]]]

    def json(self) -> str:
        """The dashboard as Grafana's JSON, always the same for the same code. Raises UnknownSeriesError."""
        built = self._builder().build()
        numbered(built.panels or ())
        return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(built) + "\n"

    def _builder(self) -> Dashboard:
        builder = Dashboard(self.title).uid(f"reprise-{self.slug}").description(self.text).tags(["reprise"])
        builder.time("now-6h", "now").refresh("30s").timezone("browser").version(1)
        builder.tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        builder.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        builder.with_variable(_choice("model", "Model", "label_values(reprise_requests_total, model)"))
        builder.with_variable(_choice("mode", "Mode", "label_values(reprise_comparisons_total, mode)"))
        builder.with_variable(_choice("origin", "Origin", "label_values(reprise_comparisons_total, origin)"))
        builder.with_variable(_window())
        builder.link(
            DashboardLink("Reprise")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["reprise"])
            .keep_time(keep_time=True)
        )
        builder.annotation(
            AnnotationQuery()
            .name("New posture")
            .datasource(DATASOURCE)
            .enable(enable=True)
            .icon_color("orange")
            .expr(names.check(_NEW_POSTURE))
            .title_format("{{replica}}: posture {{posture}}")
        )
        for title, panels in self.rows:
            builder.with_row(Row(title))
            for panel in panels:
                builder.with_panel(panel)
        return builder


def _choice(name: str, label: str, query: str) -> QueryVariable:
    """A variable of label values, all of them unless chosen."""
    names.check(query)
    everything = dashboard.VariableOption(text="All", value="$__all")
    variable = QueryVariable(name).label(label).query(query).datasource(DATASOURCE).definition(query)
    variable.include_all(include_all=True).all_value(".*").multi(multi=True).current(everything)
    return variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        dashboard.VariableSort.ALPHABETICAL_ASC
    )


def _window() -> CustomVariable:
    options = [dashboard.VariableOption(text=window, value=window, selected=window == "1h") for window in WINDOWS]
    variable = CustomVariable("window").label("Window").values(",".join(WINDOWS)).options(options)
    return variable.current(dashboard.VariableOption(text="1h", value="1h"))
