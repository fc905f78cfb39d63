"""The page at /ui/: signs a browser in, with the code of a one-time link or a password, and shows who is signed in.

Its script is a file of its own, so that the page needs no inline script. It takes the code out of the address at once,
and keeps the secret of the tab in sessionStorage; texts of the broker are shown as text, never as HTML.
"""

from __future__ import annotations

from typing import Final

from penstock.access.sessions import TAB_HEADER

PATH: Final = "/ui/"
SCRIPT_PATH: Final = "/ui/sign-in.js"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {"content-security-policy": POLICY, "cache-control": "no-store", "referrer-policy": "no-referrer"}

PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 30rem; margin: 4rem auto; padding: 0 1rem; }}
label, button {{ display: block; margin: .6rem 0; }}
input {{ display: block; width: 100%; box-sizing: border-box; font: inherit; padding: .4rem; }}
button {{ font: inherit; padding: .4rem 1rem; }}
</style>
<script src="{SCRIPT_PATH}" defer></script>
</head>
<body>
<h1>Penstock</h1>
<p id="message" role="status"></p>
<form id="sign-in" hidden>
<label>User <input id="user" autocomplete="username" required></label>
<label>Password <input id="password" type="password" autocomplete="current-password" required></label>
<button>Sign in</button>
<p>Or open a new link from <code>penstock dashboard</code>.</p>
</form>
<div id="signed-in" hidden>
<ul id="grants"></ul>
<button id="reference">API reference</button>
<button id="sign-out">Sign out</button>
</div>
<noscript>This page needs JavaScript to sign in.</noscript>
</body>
</html>
"""

SCRIPT: Final = f"""\
"use strict";
const TAB = "penstock-tab";
const element = (id) => document.getElementById(id);

function call(method, path, body) {{
  const headers = {{}};
  const secret = sessionStorage.getItem(TAB);
  if (secret) headers["{TAB_HEADER}"] = secret;
  if (body) headers["Content-Type"] = "application/json";
  return fetch(path, {{ method, headers, body: body ? JSON.stringify(body) : undefined }});
}}

async function signIn(credentials) {{
  const answer = await call("POST", "/api/v1/sessions", credentials);
  const body = await answer.json();
  if (!answer.ok) {{
    await show(body.error.message + (body.error.hint ? ": " + body.error.hint : ""));
    return;
  }}
  if (body.tab_secret) sessionStorage.setItem(TAB, body.tab_secret);
  await show("");
}}

async function show(problem) {{
  const answer = await call("GET", "/api/v1/me");
  const me = answer.ok ? await answer.json() : null;
  element("sign-in").hidden = me !== null;
  element("signed-in").hidden = me === null;
  element("message").textContent = problem || (me ? "Signed in as " + me.name + "." : "Nobody is signed in.");
  const items = (me ? me.grants : []).map((grant) => {{
    const item = document.createElement("li");
    item.textContent = grant;
    return item;
  }});
  element("grants").replaceChildren(...items);
}}

async function showReference() {{
  const answer = await call("GET", "/docs");
  if (!answer.ok) return show("");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.replaceChild(document.adoptNode(page.documentElement), document.documentElement);
}}

async function signOut() {{
  await call("DELETE", "/api/v1/sessions/current");
  sessionStorage.removeItem(TAB);
  await show("");
}}

element("sign-in").addEventListener("submit", (event) => {{
  event.preventDefault();
  const credentials = {{ user: element("user").value, password: element("password").value }};
  element("password").value = "";
  signIn(credentials);
}});
element("reference").addEventListener("click", showReference);
element("sign-out").addEventListener("click", signOut);

function begin() {{
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (location.hash) history.replaceState(null, "", location.pathname);
  return code ? signIn({{ code }}) : show("");
}}
addEventListener("hashchange", begin);
begin();
"""
