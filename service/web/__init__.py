"""The web pages: HTML for people with a browser, over the same services as the API under ``/v1``.

    routers/      one small router per page; they call ``autosbp.service.services`` as the API's routers do
    presenters/   content of pages, computed from stored documents: plain frozen values, no HTML
    templates/    Jinja; everything is escaped, and there are no inline scripts or styles
    static/       one style sheet, small modules of our own, and ``vendor/`` with checksums

Pages are not in the OpenAPI document: programs use ``/v1``.
"""
