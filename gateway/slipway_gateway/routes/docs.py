"""Page that documents the API, from the assets of the installed package swagger-ui-bundle.

Nothing comes from the internet. The page has no script inside of itself, so its content security policy
allows scripts of this server only, and a description of the API cannot make the page load anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from fastapi import APIRouter, Response
from starlette.responses import FileResponse

from slipway_gateway.errors import not_found

ASSETS = "/docs/assets/"
_SCRIPT = "text/javascript; charset=utf-8"
_STYLE = "text/css; charset=utf-8"
_SWAGGER = {"swagger-ui.css": _STYLE, "swagger-ui-bundle.js": _SCRIPT}
_OWN = {"start.js": _SCRIPT, "page.css": _STYLE}
# Swagger UI sets style attributes, and shows icons as data URLs inside its style sheet.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slipway API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{ASSETS}swagger-ui.css">
<link rel="stylesheet" href="{ASSETS}page.css">
</head>
<body>
<div id="api" data-url="/openapi.json"></div>
<script src="{ASSETS}swagger-ui-bundle.js"></script>
<script src="{ASSETS}start.js"></script>
</body>
</html>
"""


def router() -> APIRouter:
    """Return the routes of the page and its assets."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def page() -> Response:
        return Response(_PAGE, media_type="text/html", headers=_HEADERS)

    @routes.get(ASSETS + "{name}")
    async def asset(name: str) -> Response:
        if name in _SWAGGER:
            from swagger_ui_bundle import swagger_ui_path

            return FileResponse(
                swagger_ui_path / name,
                media_type=_SWAGGER[name],
                headers={**_HEADERS, "cache-control": "max-age=86400"},
            )
        if name in _OWN:
            data = (files("slipway_gateway.routes") / "docs_assets" / name).read_bytes()
            return Response(data, media_type=_OWN[name], headers=_HEADERS)
        raise not_found("asset", name[:80])

    return routes
