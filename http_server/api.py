"""All paths of the API. A new one is a file in `endpoints/` with a row, which is added here."""

from .endpoints import chat, completions, for_routers, messages, models, responses, status, tokenize

API = (
    completions.ROUTE,
    chat.ROUTE,
    responses.ROUTE,
    *messages.ROUTES,
    *models.ROUTES,
    *tokenize.ROUTES,
    *status.ROUTES,
    *for_routers.ROUTES,
)
