"""`/api/v1/keys` on both stores: what it answers, and what is in the tables then."""

from tests.pixdict.core.kit import key, settings, stand
from tests.pixdict.directory.kit import PHONE


async def test_a_key_is_created_read_changed_and_deleted(url, tmp_path):
    async with stand(url, tmp_path) as s:
        made = await s.create()
        assert made.status == 201, made
        id = made.body["entry_id"]
        assert made.body == {"entry_id": id, "status": "ACTIVE"}
        assert made.headers["location"] == f"/api/v1/keys/{id}"
        for path in (id, "%2B" + PHONE[1:], PHONE):
            read = await s.ask("GET", f"/api/v1/keys/{path}")
            assert read.status == 200
            assert (read.body["id"], read.body["status"], read.body["key_value"]) == (id, "ACTIVE", PHONE)
        changed = await s.ask("PATCH", f"/api/v1/keys/{id}", {"account": key()["account"] | {"account_number": "9"}})
        assert (changed.status, changed.body) == (200, {"entry_id": id, "status": "ACTIVE"})
        assert s.b.look_up(PHONE).message.entry.account.account_number == "9"
        listed = await s.ask("GET", "/api/v1/keys?status=ACTIVE")
        assert [one["account_number"] for one in listed.body["keys"]] == ["9"]
        gone = await s.ask("DELETE", f"/api/v1/keys/{id}?reason=ACCOUNT_CLOSURE")
        assert (gone.status, gone.body) == (200, {"entry_id": id, "status": "DELETED"})
        assert (await s.ask("GET", f"/api/v1/keys/{PHONE}")).status == 404
        assert (await s.ask("GET", f"/api/v1/keys/{id}")).body["status"] == "DELETED"
        assert s.directory.storage.counts()["entries"] == 0
        again = await s.ask("DELETE", f"/api/v1/keys/{id}")
        assert (again.status, again.body["code"]) == (409, "entry_not_active")


async def test_a_list_is_read_page_by_page_with_the_cursor_as_it_comes(url, tmp_path):
    async with stand(url, tmp_path, worker=False, settings=settings(wait=0.0)) as s:
        made = [(await s.create(key(f"+551190000000{digit}"))).body["entry_id"] for digit in range(5)]
        read: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await s.ask("GET", f"/api/v1/keys?limit=2&cursor={cursor}")
            assert page.status == 200, page
            read += [one["id"] for one in page.body["keys"]]
            cursor = page.body["cursor"]
        assert read == made[::-1]
