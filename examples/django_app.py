"""gunicorn examples.django_app:application, or uvicorn examples.django_app:asgi"""

import os

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from ratelimit_mw.django import limit

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["ratelimit_mw.django"],  # manage.py check looks at the limits
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={"limits": "5 per 3 seconds; 1000/hour", "store": os.environ.get("STORE", "memory://")},
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "change me"),
)


def home(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"left": request.ratelimit.remaining})  # type: ignore[attr-defined]  # ours


@limit("2 per 3 seconds", methods=["POST"], key="ip")
def login(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"welcome": True})


urlpatterns = [path("", home), path("login", login)]
application = get_wsgi_application()
asgi = get_asgi_application()
