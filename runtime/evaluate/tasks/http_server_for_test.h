// A server of a few lines for tests: one thread, one connection at a time, a function that answers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace tq {

class HttpServerForTest {
 public:
  struct Request {
    std::string line;     // "POST /v1/completions HTTP/1.1"
    std::string headers;  // with its line ends, in lower case
    std::string body;
  };
  struct Response {
    int status = 200;
    std::string body = {};
    std::string headers = {};  // "Retry-After: 1\r\n"
    bool hang_up = false;      // closes without an answer
  };
  using Handler = std::function<Response(const Request&)>;

  explicit HttpServerForTest(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return;  // port_ 0: no test can connect
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~HttpServerForTest() {
    ::shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/v1"; }

 private:
  void Serve() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      Answer(client);
      ::close(client);
    }
  }

  void Answer(int client) {
    std::string data;
    size_t end = std::string::npos, length = 0;
    Request request;
    char buffer[4096];
    while (end == std::string::npos || data.size() < end + 4 + length) {
      const ssize_t got = ::recv(client, buffer, sizeof(buffer), 0);
      if (got <= 0) return;
      data.append(buffer, static_cast<size_t>(got));
      if (end != std::string::npos || (end = data.find("\r\n\r\n")) == std::string::npos) continue;
      request.line = data.substr(0, data.find("\r\n"));
      request.headers = data.substr(0, end + 2);
      std::transform(request.headers.begin(), request.headers.end(), request.headers.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      const std::string mark = "content-length: ";
      const size_t at = request.headers.find(mark);
      if (at != std::string::npos) length = std::stoul(request.headers.substr(at + mark.size()));
    }
    request.body = data.substr(end + 4);
    const Response r = handler_(request);
    if (r.hang_up) return;
    const std::string out = "HTTP/1.1 " + std::to_string(r.status) +
                            " x\r\nContent-Length: " + std::to_string(r.body.size()) +
                            "\r\nConnection: close\r\n" + r.headers + "\r\n" + r.body;
    for (size_t sent = 0; sent < out.size();) {
      const ssize_t n = ::send(client, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace tq
