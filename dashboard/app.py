"""Entry script of the dashboard, run by Streamlit: `streamlit run app.py -- STORE [--hide-texts]`.

Every run checks the store first, so that a page never meets one that is missing, empty or of another schema version.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

from dashboard import data, guard, session, status
from dashboard.command import HIDE_TEXTS
from orchestrator.errors import UserError

HERE = Path(__file__).parent
# Names of files in views/ with their icons.
PAGES = {
    "Results": {
        "overview": "dashboard",
        "accuracy": "target",
        "differences": "align_horizontal_center",
        "compression": "compress",
        "protection": "shield",
        "throughput": "speed",
        "frontier": "scatter_plot",
        "replication": "fact_check",
    },
    "Behind the numbers": {
        "problems": "grid_on",
        "transcript": "article",
        "lengths": "straighten",
        "retention": "blur_on",
    },
    "Campaign": {"live": "monitor_heart", "runs": "history"},
}


def page(name: str, icon: str) -> st.Page:
    """The page of `views/<name>.py`; its file name is its address."""
    return st.Page(
        HERE / "views" / f"{name}.py",
        title=name.capitalize(),
        icon=f":material/{icon}:",
        url_path=name,
        default=name == "overview",
    )


def main(store: Path, show_texts: bool) -> None:
    """Draw the frame of every page, then the page; a problem with the store takes the page's place."""
    st.set_page_config(page_title="evictbench", page_icon=":material/delete_sweep:", layout="wide")
    st.html(HERE / "style.css")
    chosen = st.navigation(
        {group: [page(*item) for item in views.items()] for group, views in PAGES.items()}, expanded=True
    )
    try:
        session.start(store, show_texts)
        chosen.run()
    except UserError as error:
        st.title("Nothing to show yet")
        st.warning(str(error), icon=":material/info:")
        st.button("Look again", icon=":material/refresh:")
        if guard.is_readable(store):
            waiting(store, data.stamp(store))


@st.fragment(run_every=status.EVERY_SECONDS)
def waiting(store: Path, stamp: str) -> None:
    """What is on its way, while a store has no rows; new files bring another look."""
    status.failures(store)
    status.engines(store)
    if data.stamp(store) != stamp:
        st.rerun(scope="app")


if __name__ == "__main__":
    main(Path(sys.argv[1]), HIDE_TEXTS not in sys.argv[2:])
