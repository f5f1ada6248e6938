// An OpenID provider for tests: node provider.js KEYS PORT
//
// KEYS is a JSON file of the private keys (JWKS). PORT 0 chooses a free port. The provider prints a
// line with its port when it serves, and ends when its standard input ends. Its client `pump-7` with
// the secret `drip` gets tokens by client credentials; the parameter `scope` names the scopes, and
// the parameter `resource` the audience.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [keys, port] = process.argv.slice(2);
const SCOPES = [
  'configure:*/*',
  'write:*/amq.topic/plant.${sub}.*',
  'read:*/*',
  'write:*/*',
  'tag:administrator',
  'plant-operators',
];

const server = createServer();
server.listen(Number(port), '127.0.0.1', () => {
  const provider = new Provider(`http://localhost:${server.address().port}`, {
    jwks: JSON.parse(readFileSync(keys)),
    clients: [
      {
        client_id: 'pump-7',
        client_secret: 'drip',
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
      },
    ],
    scopes: SCOPES,
    extraTokenClaims: () => ({ tenant: '/', acl: ['allow all plant/{username}/#'] }),
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          scope: SCOPES.join(' '),
          audience: resource.replace('urn:', ''),
          accessTokenFormat: 'jwt',
          accessTokenTTL: 600,
        }),
      },
    },
  });
  server.on('request', provider.callback());
  console.log(`ready ${server.address().port}`);
});
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
