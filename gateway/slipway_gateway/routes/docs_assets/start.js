// Shows the description of the API that the page names. It is a file of its own, since the page allows no
// script inside of itself.
const place = document.getElementById("api");

function show(description) {
  SwaggerUIBundle({
    domNode: place,
    // This Swagger UI refuses the number of OpenAPI 3.1, but shows all that these descriptions use of it.
    spec: { ...description, openapi: "3.0.3" },
    deepLinking: true,
    // The badge of the default configuration would send the address to a service on the internet.
    validatorUrl: null,
    presets: [SwaggerUIBundle.presets.apis],
  });
}

fetch(place.dataset.url)
  .then((answer) => answer.json())
  .then(show)
  .catch((error) => {
    place.textContent = `The description of the API cannot be read: ${error.message}`;
  });
