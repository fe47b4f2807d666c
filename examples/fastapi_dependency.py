"""uvicorn examples.fastapi_dependency:app"""

import os

from fastapi import APIRouter, Depends, FastAPI

from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware

app = FastAPI(responses=RateLimit.responses)
# One bucket for all routes of the router; each of them may have limits of its own besides.
accounts = APIRouter(dependencies=[Depends(RateLimit("1000/hour", name="accounts"))])


@app.get("/", dependencies=[Depends(RateLimit("5 per 3 seconds"))])
async def home() -> str:
    return "welcome"


@accounts.post("/login", dependencies=[Depends(RateLimit("2 per 3 seconds", key="ip"))])
async def login() -> str:
    return "logged in"


app.include_router(accounts)
# Its store and settings are those of all of them; limits of its own would count on every route.
app.add_middleware(RateLimitMiddleware, limits=[], store=os.environ.get("STORE", "memory://"))
