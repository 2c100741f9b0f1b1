// The API documentation, from this service's openapi.json.
SwaggerUIBundle({
  url: `${document.documentElement.dataset.root}/openapi.json`,
  domNode: document.getElementById("interface"),
  deepLinking: true,
  docExpansion: "list",
  validatorUrl: null,
  persistAuthorization: false,
});
