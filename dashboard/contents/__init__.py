"""What each page of results says: pure functions of a session, shown by Streamlit and written into the static bundle.

One file per page with a function `build(state) -> Content`; nothing here draws or imports a page.
"""
