"""uvicorn examples.fastapi_app:app"""

import os

from fastapi import APIRouter, FastAPI, Request

from ratelimit_mw.asgi import RateLimitMiddleware

app = FastAPI()
api = APIRouter(prefix="/api")


@app.get("/")
async def home(request: Request) -> dict[str, int]:
    return {"left": request.state.ratelimit.remaining}


@api.get("/reports/{report_id}")
async def report(report_id: int) -> dict[str, int]:
    return {"report": report_id}


app.include_router(api)
app.add_middleware(
    RateLimitMiddleware,
    limits="5 per 3 seconds; 1000/hour",
    rules=[{"path": "/api/reports/{id}", "limits": "2 per 3 seconds burst 2 using token_bucket", "key": "user | ip"}],
    store=os.environ.get("STORE", "memory://"),
)
