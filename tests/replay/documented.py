"""Lines of logs as each vendor documents them."""

import json
from typing import Any

# httpd.apache.org/docs/current/logs.html
COMMON = '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
COMBINED = f'{COMMON} "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)"'

# nginx.org/en/docs/http/ngx_http_log_module.html
NGINX_COMBINED = """log_format combined '$remote_addr - $remote_user [$time_local] '
                    '"$request" $status $body_bytes_sent '
                    '"$http_referer" "$http_user_agent"';"""

# httpd.apache.org/docs/current/mod/mod_log_config.html
APACHE_COMMON = r'LogFormat "%h %l %u %t \"%r\" %>s %b"'
APACHE_VIRTUAL_HOST = r'LogFormat "%v %h %l %u %t \"%r\" %>s %b"'
APACHE_COMBINED = r'LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-agent}i\""'
APACHE_MILLISECONDS = '%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t %a "%r" %>s'

# caddyserver.com/docs/logging
CADDY: dict[str, Any] = {
    "level": "info",
    "ts": 1646861401.5241024,
    "logger": "http.log.access",
    "msg": "handled request",
    "request": {
        "remote_ip": "127.0.0.1",
        "remote_port": "41342",
        "client_ip": "127.0.0.1",
        "proto": "HTTP/2.0",
        "method": "GET",
        "host": "localhost",
        "uri": "/",
        "headers": {"User-Agent": ["curl/7.82.0"], "Accept": ["*/*"], "Accept-Encoding": ["gzip, deflate, br"]},
        "tls": {"resumed": False, "version": 772, "cipher_suite": 4865, "proto": "h2", "server_name": "example.com"},
    },
    "bytes_read": 0,
    "user_id": "",
    "duration": 0.000929675,
    "size": 10900,
    "status": 200,
    "resp_headers": {
        "Server": ["Caddy"],
        "Content-Encoding": ["gzip"],
        "Content-Type": ["text/html; charset=utf-8"],
        "Vary": ["Accept-Encoding"],
    },
}

# envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage: the default format string
ENVOY = (
    '[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" '
    '"nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"'
)
# istio.io/latest/docs/tasks/observability/logs/access-log: Istio's names of fields; missing values are null
ENVOY_JSON = {
    "authority": "locations",
    "bytes_received": 154,
    "bytes_sent": 0,
    "connection_termination_details": None,
    "downstream_local_address": "10.0.2.1:80",
    "downstream_remote_address": "10.0.35.28:50000",
    "duration": 226,
    "method": "POST",
    "path": "/api/v1/locations",
    "protocol": "HTTP/2",
    "request_id": "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2",
    "requested_server_name": None,
    "response_code": 204,
    "response_code_details": "via_upstream",
    "response_flags": "-",
    "route_name": "default",
    "start_time": "2016-04-15T20:17:00.310Z",
    "upstream_cluster": "inbound|80||",
    "upstream_host": "10.0.2.1:80",
    "upstream_local_address": "127.0.0.6:44444",
    "upstream_service_time": "100",
    "upstream_transport_failure_reason": None,
    "user_agent": "nsq2http",
    "x_forwarded_for": None,
}

# docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html; 33 fields
_BALANCER = "app/my-loadbalancer/50dc6c495c0c9188"
_TARGETS = "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067"
_CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/12345678-1234-1234-1234-123456789012"
ALB_FIELDS = (
    "type time elb client:port target:port request_processing_time target_processing_time response_processing_time "
    "elb_status_code target_status_code received_bytes sent_bytes request user_agent ssl_cipher ssl_protocol "
    "target_group_arn trace_id domain_name chosen_cert_arn matched_rule_priority request_creation_time "
    "actions_executed redirect_url error_reason target:port_list target_status_code_list classification "
    "classification_reason conn_trace_id transformed_host transformed_uri request_transform_status"
)
ALB = (
    f"http 2018-07-02T22:23:00.186641Z {_BALANCER} 192.168.131.39:2817 10.0.0.1:80 "
    '0.000 0.001 0.000 200 200 34 366 "GET http://www.example.com:80/ HTTP/1.1" "curl/7.46.0" - - '
    f'{_TARGETS} "Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "-" '
    '"10.0.0.1:80" "200" "-" "-" TID_1234abcd5678ef90 "-" "-" "-"'
)
ALB_HTTPS = (
    f"https 2018-07-02T22:23:00.186641Z {_BALANCER} 192.168.131.39:2817 10.0.0.1:80 "
    '0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/ HTTP/1.1" "curl/7.46.0" '
    f'ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 {_TARGETS} "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" '
    f'"{_CERTIFICATE}" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" '
    'TID_1234abcd5678ef90 "m.example.com" "-" "TransformSuccess"'
)
ALB_HTTP2 = (
    f"h2 2018-07-02T22:23:00.186641Z {_BALANCER} 10.0.1.252:48160 10.0.0.66:9000 "
    '0.000 0.002 0.000 200 200 5 257 "GET https://10.0.2.105:773/ HTTP/2.0" "curl/7.46.0" '
    f'ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 {_TARGETS} "Root=1-58337327-72bd00b0343d75b906739c42" "-" "-" '
    '1 2018-07-02T22:22:48.364000Z "redirect" "https://example.com:80/" "-" "10.0.0.66:9000" "200" "-" "-" '
    'TID_1234abcd5678ef90 "-" "-" "-"'
)
ALB_WEBSOCKET = (
    f"ws 2018-07-02T22:23:00.186641Z {_BALANCER} 10.0.0.140:40914 10.0.1.192:8010 "
    '0.001 0.003 0.000 101 101 218 587 "GET http://10.0.0.30:80/ HTTP/1.1" "-" - - '
    f'{_TARGETS} "Root=1-58337364-23a8c76965a2ef7629b185e3" "-" "-" 1 2018-07-02T22:22:48.364000Z "forward" "-" "-" '
    '"10.0.1.192:8010" "101" "-" "-" TID_1234abcd5678ef90 "-" "-" "-"'
)
ALB_LAMBDA = (
    f"http 2018-11-30T22:23:00.186641Z {_BALANCER} 192.168.131.39:2817 - "
    '0.000 0.001 0.000 502 - 34 366 "GET http://www.example.com:80/ HTTP/1.1" "curl/7.46.0" - - '
    f'{_TARGETS} "Root=1-58337364-23a8c76965a2ef7629b185e3" "-" "-" 0 2018-11-30T22:22:48.364000Z "forward" "-" '
    '"LambdaInvalidResponse" "-" "-" "-" "-" TID_1234abcd5678ef90 "-" "-" "-"'
)

# docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html; 33 fields, after two header
# lines
CLOUDFRONT_FIELDS = (
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
    "cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes "
    "time-taken x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status "
    "fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len "
    "sc-range-start sc-range-end"
)
CLOUDFRONT = (
    "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-\t"
    "Mozilla/5.0%20(Windows%20NT%2010.0;%20Win64;%20x64)%20AppleWebKit/537.36%20(KHTML,%20like%20Gecko)%20"
    "Chrome/78.0.3904.108%20Safari/537.36\t-\t-\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==\t"
    "d111111abcdef8.cloudfront.net\thttps\t23\t0.001\t-\tTLSv1.2\tECDHE-RSA-AES128-GCM-SHA256\tHit\tHTTP/2.0\t-\t-\t"
    "11040\t0.001\tHit\ttext/html\t78\t-\t-"
)
CLOUDFRONT_FILE = ["#Version: 1.0", CLOUDFRONT_FIELDS, CLOUDFRONT]


def caddy(**request: object) -> str:
    """Return the documented line of Caddy, with other values in its request."""
    return json.dumps({**CADDY, "request": {**CADDY["request"], **request}})
