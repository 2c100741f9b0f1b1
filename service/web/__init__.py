"""The pages: HTML over the same services as the interface under ``/v1``, for people with a browser.

    routers/      one small router per page; they call ``service.services`` as the API's routers do
    presenters/   what a page shows, worked out from stored documents: plain frozen values, no HTML
    templates/    Jinja; everything is escaped, nothing is inline
    static/       one style sheet, small modules of our own, and ``vendor/`` with checksums

Pages stay out of the OpenAPI document: programs use ``/v1``.
"""
